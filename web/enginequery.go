package web

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

const (
	defaultRows = 50
	maxRows     = 100

	paramLimit        = "limit"
	paramContinuation = "continuationToken"
)

// tableQuery is what a request says about the page of a table that it wants.
type tableQuery struct {
	kind     byte
	filter   map[string]string // each with a value
	from, to *time.Time        // of the filter: fromDate <= it < toDate; nil: no bound
	limit    int
	after    *storage.TableCursor // nil: from the start
}

// parseTableQuery reads the query of a list of dead letters or history entries: the filters that both have and those that
// this one has besides. What the list has alone, and the status, it checks itself.
func (s *Server) parseTableQuery(r *http.Request, kind byte, besides ...string) (tableQuery, error) {
	q, err := s.parseListQuery(r, kind, append([]string{"engine", "instanceId", "status", "fromDate", "toDate"}, besides...)...)
	if err != nil {
		return q, err
	}
	return q, s.checkFilter(&q)
}

// parseListQuery reads the query of a list strictly: of the filters only those that the list has, each parameter at most
// once and with a value. What the values are is checked by the list, except for the limit and the token.
func (s *Server) parseListQuery(r *http.Request, kind byte, filters ...string) (tableQuery, error) {
	q := tableQuery{kind: kind, filter: map[string]string{}, limit: defaultRows}
	query, err := parseQuery(r)
	if err != nil {
		return q, err
	}
	known := append(slices.Clone(filters), paramLimit, paramContinuation)
	for name, values := range query {
		switch {
		case !slices.Contains(known, name):
			return q, badRequest("the query has " + quoted(name) + "; it may have " + strings.Join(known, ", "))
		case len(values) != 1:
			return q, badRequest(name + " is there more than once")
		case values[0] == "":
			return q, badRequest(name + " is empty; leave it out instead")
		}
		q.filter[name] = values[0]
	}
	return q, s.readPosition(&q)
}

// readPosition takes the limit and the token out of the query: pages of one list may have several lengths, and the token
// stands for the filters that are left.
func (s *Server) readPosition(q *tableQuery) error {
	if limit, ok := q.filter[paramLimit]; ok {
		n, err := strconv.Atoi(limit)
		if err != nil || n < 1 || n > maxRows || strconv.Itoa(n) != limit {
			return badRequest("limit is not a number from 1 to 100")
		}
		q.limit = n
		delete(q.filter, paramLimit)
	}
	if token, ok := q.filter[paramContinuation]; ok {
		delete(q.filter, paramContinuation)
		c, ok := openToken(s.o.TokenKey, token)
		if !ok || c.kind != q.kind {
			return badRequest("continuationToken is none that this list gave out")
		}
		if c.filter != fingerprint(q.kind, q.filter) {
			return badRequest("continuationToken belongs to other filters; a list goes on with the filters that it began with")
		}
		q.after = &c.after
	}
	return nil
}

// checkFilter checks the filters that both lists have, but for the status.
func (s *Server) checkFilter(q *tableQuery) (err error) {
	if engine, ok := q.filter["engine"]; ok {
		if err := s.checkEngine(engine); err != nil {
			return err
		}
	}
	if instance, ok := q.filter["instanceId"]; ok {
		if err := checkLine("instanceId", instance, maxInstanceID); err != nil {
			return err
		}
	}
	if q.from, err = q.date("fromDate"); err != nil {
		return err
	}
	if q.to, err = q.date("toDate"); err != nil {
		return err
	}
	if q.from != nil && q.to != nil && q.from.After(*q.to) {
		return badRequest("fromDate is after toDate")
	}
	return nil
}

// date reads a date of the query; nil where there is none.
func (q tableQuery) date(name string) (*time.Time, error) {
	value, ok := q.filter[name]
	if !ok {
		return nil, nil
	}
	var at time.Time
	if at.UnmarshalText([]byte(value)) != nil {
		return nil, badRequest(name + " is not a date and time as of RFC 3339 (2026-01-31T12:00:00Z; a + in a query is %2B)")
	}
	at, err := inRange(name, at)
	return &at, err
}

// inRange makes a time one that the database can keep.
func inRange(name string, at time.Time) (time.Time, error) {
	at = at.UTC().Truncate(time.Microsecond)
	if at.Before(earliest) || at.After(latest) {
		return at, badRequest(name + " is not within the years 1000 to 9999")
	}
	return at, nil
}

// oneOf checks a filter that has few values; empty where it is not there.
func oneOf[T ~string](q tableQuery, name string, allowed ...T) (T, error) {
	value, ok := q.filter[name]
	if !ok || slices.Contains(allowed, T(value)) {
		return T(value), nil
	}
	words := make([]string, len(allowed))
	for i, a := range allowed {
		words[i] = string(a)
	}
	return "", badRequest(name + ": " + quoted(value) + " is none of " + strings.Join(words, ", "))
}

// tablePage is the data of a list.
type tablePage[T any] struct {
	Items             []T    `json:"items"`
	ContinuationToken string `json:"continuationToken,omitempty"` // not on the last page
}

// succeedPage answers with a page of a list, and with the token of the next one where there is more.
func succeedPage[Row, Item any](s *Server, w http.ResponseWriter, r *http.Request, q tableQuery, rows []Row, more bool,
	item func(*Row) Item, cursor func(*Row) storage.TableCursor) error {
	page := tablePage[Item]{Items: make([]Item, len(rows))}
	for i := range rows {
		page.Items[i] = item(&rows[i])
	}
	if more && len(rows) > 0 {
		last := cursor(&rows[len(rows)-1])
		page.ContinuationToken = sealToken(s.o.TokenKey, continuation{kind: q.kind, filter: fingerprint(q.kind, q.filter), after: last})
	}
	return s.succeed(w, r, http.StatusOK, page)
}
