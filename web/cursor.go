package web

import (
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"net/url"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

const (
	pageSize = 25

	paramNext     = "next"     // what is older than the cursor
	paramPrevious = "previous" // what is newer than the cursor
)

// place is where a page of a list begins or ends. On the wire it is base64url without padding of a version byte, a
// byte for the kind and the fields of the kind, so that a cursor of one list is refused by another kind of list.
type place struct {
	kind byte
	key  uint32     // of placeKey
	id   storage.ID // of placeID and placeDeath
	at   time.Time  // of placeDeath; microseconds
}

const (
	cursorVersion = 1

	placeKey   = 'k' // lists of the catalog: the database's id
	placeID    = 'i' // lists of messages: the message's xid
	placeDeath = 'd' // lists of dead jobs: time of death and the job's xid
)

// The years that a DATETIME can have; a cursor with others was not made here.
var (
	earliest = time.Date(1000, 1, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)
)

// String is the place as a cursor.
func (p place) String() string {
	b := []byte{cursorVersion, p.kind}
	switch p.kind {
	case placeKey:
		b = binary.BigEndian.AppendUint32(b, p.key)
	case placeID:
		b = append(b, p.id[:]...)
	case placeDeath:
		b = binary.BigEndian.AppendUint64(b, uint64(p.at.UnixMicro()))
		b = append(b, p.id[:]...)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// parsePlace reads a cursor of the given kind. It takes exactly what String makes.
func parsePlace(kind byte, cursor string) (place, bool) {
	p := place{kind: kind}
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(b) < 2 || b[0] != cursorVersion || b[1] != kind {
		return p, false
	}
	b = b[2:]
	if kind == placeDeath {
		if len(b) != 8+len(p.id) {
			return p, false
		}
		p.at = time.UnixMicro(int64(binary.BigEndian.Uint64(b))).UTC()
		if p.at.Before(earliest) || p.at.After(latest) {
			return p, false
		}
		b = b[8:]
	}
	if kind == placeKey {
		if len(b) != 4 {
			return p, false
		}
		p.key = binary.BigEndian.Uint32(b)
		return p, p.String() == cursor
	}
	if len(b) != len(p.id) {
		return p, false
	}
	copy(p.id[:], b)
	return p, p.String() == cursor
}

// pageQuery is what a request says about the page that it wants; from nil: the first page.
type pageQuery struct {
	from  *place
	older bool // true: what comes after from in the list; false: what comes before it
}

func parsePage(r *http.Request, kind byte) (pageQuery, error) {
	query, err := parseQuery(r)
	if err != nil {
		return pageQuery{}, err
	}
	next, previous := query[paramNext], query[paramPrevious]
	if len(next)+len(previous) > 1 {
		return pageQuery{}, badRequest("next and previous: only one of them, once")
	}
	cursor := query.Get(paramNext) + query.Get(paramPrevious)
	if cursor == "" {
		return pageQuery{}, nil
	}
	p, ok := parsePlace(kind, cursor)
	if !ok {
		return pageQuery{}, badRequest("the cursor is not one of this list")
	}
	return pageQuery{from: &p, older: len(next) == 1}, nil
}

// cursor is the page query as the storage wants it.
func (q pageQuery) cursor() *storage.Cursor {
	if q.from == nil {
		return nil
	}
	return &storage.Cursor{Older: q.older, At: q.from.at, ID: q.from.id}
}

// pageLinks links to the pages around a page whose first and last entries are given. A page with entries always has
// both: clients of the wire contract follow next until a page is empty, and previous of the first page is where they
// find what has come since. An empty page has none.
func pageLinks[T any](r *http.Request, entries []T, placeOf func(T) place) map[string]string {
	links := map[string]string{}
	if len(entries) == 0 {
		return links
	}
	link := func(param string, at T) string {
		query := r.URL.Query()
		query.Del(paramNext)
		query.Del(paramPrevious)
		query.Set(param, placeOf(at).String())
		return r.URL.EscapedPath() + "?" + query.Encode()
	}
	links[paramPrevious] = link(paramPrevious, entries[0])
	links[paramNext] = link(paramNext, entries[len(entries)-1])
	return links
}

// pageOf cuts a page of a list that is ordered by rising keys, the oldest first; the page is newest first.
func pageOf[T any](all []T, keyOf func(T) uint32, q pageQuery) []T {
	page := make([]T, 0, pageSize)
	if q.from != nil && !q.older {
		// The entries next newer than the cursor, which are the end of the page.
		for _, v := range all {
			if keyOf(v) > q.from.key {
				page = append(page, v)
				if len(page) == pageSize {
					break
				}
			}
		}
		for i, j := 0, len(page)-1; i < j; i, j = i+1, j-1 {
			page[i], page[j] = page[j], page[i]
		}
		return page
	}
	for i := len(all) - 1; i >= 0 && len(page) < pageSize; i-- {
		if q.from == nil || keyOf(all[i]) < q.from.key {
			page = append(page, all[i])
		}
	}
	return page
}

// parseQuery reads the query strictly: what is malformed is refused, not skipped.
func parseQuery(r *http.Request) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("the query is malformed")
	}
	return query, nil
}
