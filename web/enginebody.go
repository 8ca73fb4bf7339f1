package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const typeJSON = "application/json"

// readObject reads a body that is one JSON object with the given members and no others, each at most once and spelled
// exactly so; a member that is null counts as left out, except into a json.RawMessage. into has a pointer for each.
func (s *Server) readObject(w http.ResponseWriter, r *http.Request, into map[string]any) error {
	body, err := s.readJSON(w, r)
	if err != nil {
		return err
	}
	return parseObject(body, into)
}

// readJSON reads a body that says it is JSON.
func (s *Server) readJSON(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mediaType != typeJSON {
		return nil, fail(http.StatusUnsupportedMediaType, "the body must be "+typeJSON)
	}
	return s.readBody(w, r)
}

func parseObject(body []byte, into map[string]any) error {
	if !utf8.Valid(body) {
		return badRequest("the body is not valid UTF-8")
	}
	malformed := badRequest("the body is not one JSON object")
	dec := json.NewDecoder(bytes.NewReader(body))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return malformed
	}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return malformed
		}
		field, known := into[name]
		switch {
		case !known:
			return badRequest("the body has " + quoted(name) + "; it may have " + strings.Join(slices.Sorted(maps.Keys(into)), ", "))
		case seen[name]:
			return badRequest(name + " is there more than once")
		}
		seen[name] = true
		var value json.RawMessage
		if dec.Decode(&value) != nil {
			return malformed
		}
		if json.Unmarshal(value, field) != nil {
			return badRequest(name + " is not " + wanted(field))
		}
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return malformed
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return malformed
	}
	return nil
}

// wanted says what a member must be.
func wanted(field any) string {
	switch field.(type) {
	case *int64, **int64:
		return "a whole number"
	case *time.Time:
		return "a date and time as of RFC 3339 (2026-01-31T12:00:00Z)"
	default:
		return "a string"
	}
}

// checkTime checks a time of a body, which may not be missing, and makes it one that the database can keep. What is
// more than a day ahead is no clock that goes wrong a little but a mistake, and would stay for good.
func (s *Server) checkTime(name string, at *time.Time) error {
	if at.IsZero() {
		return badRequest(name + " is missing")
	}
	var err error
	if *at, err = inRange(name, *at); err != nil {
		return err
	}
	if at.After(s.now().Add(24 * time.Hour)) {
		return badRequest(name + " is more than a day ahead")
	}
	return nil
}

// checkNumber checks a whole number of a body, which may not be missing.
func checkNumber(name string, n *int64, least, most int64) error {
	if n == nil {
		return badRequest(name + " is missing")
	}
	if *n < least || *n > most {
		return badRequest(name + " is not from " + strconv.FormatInt(least, 10) + " to " + strconv.FormatInt(most, 10))
	}
	return nil
}
