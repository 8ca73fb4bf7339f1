package storage

import (
	"slices"
	"time"
)

// Cursor is a place in a list that shows the newest first: the last row that was seen.
type Cursor struct {
	Older bool      // true: rows after it in the list (older ones); false: rows before it
	At    time.Time // of lists that are ordered by a time and then by id
	ID    ID
}

// Paging tells whether the list goes on in either direction.
type Paging struct{ HasNewer, HasOlder bool }

// keyset is the SQL of one page: rows after a cursor, in the direction of it.
type keyset struct {
	where string // to append to a WHERE
	dir   string // to append to each column of the ORDER BY
	limit int    // one row more than the page, to know whether there are more
	args  []any  // of where
}

func newKeyset(cur *Cursor, limit int, atColumn, idColumn string) keyset {
	k := keyset{dir: " DESC", limit: limit + 1}
	if cur == nil {
		return k
	}
	cmp := " < ?"
	if !cur.Older {
		cmp, k.dir = " > ?", " ASC"
	}
	if atColumn == "" {
		k.where, k.args = " AND "+idColumn+cmp, []any{cur.ID}
		return k
	}
	// Not a row comparison: the optimisers of some servers scan for those.
	orEqual := cmp[:2] + "= ?"
	k.where = " AND " + atColumn + orEqual + " AND (" + atColumn + cmp + " OR " + idColumn + cmp + ")"
	k.args = []any{cur.At, cur.At, cur.ID}
	return k
}

// pageOf cuts the rows that a keyset query returned to the page, the newest first.
func pageOf[T any](cur *Cursor, limit int, rows []T) ([]T, Paging) {
	more := len(rows) > limit
	if more {
		rows = rows[:limit]
	}
	if cur == nil || cur.Older {
		return rows, Paging{HasNewer: cur != nil, HasOlder: more}
	}
	slices.Reverse(rows)
	return rows, Paging{HasNewer: more, HasOlder: true}
}
