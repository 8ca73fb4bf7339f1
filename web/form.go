package web

import (
	"bytes"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"time"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/storage"
)

const typeForm = "application/x-www-form-urlencoded"

// readBody reads the request's body, up to the limit. A body that says itself that it is over the limit is not read
// at all.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if r.ContentLength > s.o.MaxBodyBytes {
		return nil, &http.MaxBytesError{Limit: s.o.MaxBodyBytes}
	}
	limited := http.MaxBytesReader(innermost(w), r.Body, s.o.MaxBodyBytes)
	// A client's word for the length is believed only so far: memory follows what really arrives.
	var body bytes.Buffer
	body.Grow(int(min(max(r.ContentLength, 0), 64<<10)) + bytes.MinRead)
	if _, err := body.ReadFrom(limited); err != nil {
		return nil, bodyError(err)
	}
	return body.Bytes(), nil
}

// innermost is net/http's own writer, which closes the connection after a body that is too large.
func innermost(w http.ResponseWriter) http.ResponseWriter {
	for {
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return w
		}
		w = outer.Unwrap()
	}
}

// isForm tells whether a Content-Type is the one of forms; parameters such as a charset are fine.
func isForm(contentType string) bool {
	mediaType, _, err := mime.ParseMediaType(contentType)
	return mediaType == typeForm && (err == nil || errors.Is(err, mime.ErrInvalidMediaParameter))
}

// parseForm reads the body of a form strictly.
func parseForm(body []byte) (url.Values, error) {
	if !utf8.Valid(body) {
		return nil, badRequest("the form is malformed")
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, badRequest("the form is malformed")
	}
	return form, nil
}

func (s *Server) readForm(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	if !isForm(r.Header.Get("Content-Type")) {
		return nil, fail(http.StatusUnsupportedMediaType, "the body must be "+typeForm)
	}
	body, err := s.readBody(w, r)
	if err != nil {
		return nil, err
	}
	return parseForm(body)
}

// stakeholderForm reads what the forms of producers, channels and consumers have in common.
func stakeholderForm(r *http.Request, id string, form url.Values) (storage.PutStakeholder, error) {
	p := storage.PutStakeholder{ID: id, Name: form.Get("name"), Token: form.Get("token")}
	if p.Name == "" {
		p.Name = id
	}
	if p.Token == "" {
		p.Token = storage.NewToken()
	}
	if err := CheckText("name", p.Name); err != nil {
		return p, err
	}
	if err := CheckText("token", p.Token); err != nil {
		return p, err
	}
	p.IfUnmodifiedSince = unmodifiedSince(r)
	return p, nil
}

// unmodifiedSince reads If-Unmodified-Since; nil where there is none. What is no HTTP date differs from every
// Last-Modified, as the zero time does.
func unmodifiedSince(r *http.Request) *time.Time {
	value := r.Header.Get("If-Unmodified-Since")
	if value == "" {
		return nil
	}
	at, err := http.ParseTime(value)
	if err != nil {
		at = time.Time{}
	}
	at = at.UTC()
	return &at
}

// setLastModified gives the answer the version that a conditional update names.
func setLastModified(w http.ResponseWriter, changedAt time.Time) {
	w.Header().Set("Last-Modified", changedAt.UTC().Format(http.TimeFormat))
}
