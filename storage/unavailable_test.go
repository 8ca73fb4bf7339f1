package storage_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

func TestIsUnavailable(t *testing.T) {
	t.Parallel()
	number := func(n uint16) error { return &mysql.MySQLError{Number: n} }
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("a fault of ours"), false},
		{storage.ErrNotFound, false},
		{storage.ErrLocked, false},
		{sql.ErrNoRows, false},
		{context.Canceled, false},
		{number(1062), false},
		{number(1064), false},
		{number(1040), true},
		{number(1053), true},
		{number(1205), true},
		{number(1213), true},
		{number(1290), true},
		{number(1927), true},
		{&mysql.MySQLError{Number: 1203, SQLState: [5]byte([]byte("42000"))}, true},
		{&mysql.MySQLError{Number: 1226, SQLState: [5]byte([]byte("42000"))}, true},
		{context.DeadlineExceeded, true},
		{driver.ErrBadConn, true},
		{mysql.ErrInvalidConn, true},
		{sql.ErrConnDone, true},
		{io.EOF, true},
		{io.ErrUnexpectedEOF, true},
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, true},
	} {
		if got := storage.IsUnavailable(tt.err); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.err, got, tt.want)
		}
		if tt.err != nil && storage.IsUnavailable(fmt.Errorf("while testing: %w", tt.err)) != tt.want {
			t.Errorf("%v, wrapped: not %v", tt.err, tt.want)
		}
		if tt.want && storage.IsRejected(tt.err) {
			t.Errorf("%v: would be the same the next time", tt.err)
		}
	}
}

// Where a server refuses writes the driver gives up the connection and says no more: the error says what that means.
func TestReadOnlyIsNamed(t *testing.T) {
	t.Parallel()
	s, err := storage.Open(storage.Options{DSN: storagetest.DSN(t), WrapConnector: func(c driver.Connector) driver.Connector {
		return storagetest.Intercept(c, func(query string) (string, error) {
			if strings.HasPrefix(query, "UPDATE") {
				return query, driver.ErrBadConn
			}
			return query, nil
		})
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	err = s.Unclaim(t.Context(), 1, 1)
	if !storage.IsUnavailable(err) || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("the error is %v", err)
	}
}

// TestServerDies kills the database under open connections: every call says so, nothing that was committed is gone
// when it is back, and the same Store goes on by itself.
func TestServerDies(t *testing.T) {
	t.Parallel()
	server := storagetest.Server(t)
	w := newWorldOn(t, storagetest.DSN(t, storagetest.On(server)), nil)
	k := w.consumer("k", storage.TypePush)
	lease := w.lease(longLease)
	ids := w.accepted(3, k, lease)
	w.dead(2, k)
	w.countAll()
	w.dead(2, k)
	must(w.Catalog(w.ctx))

	locked, err := w.DB().BeginTx(w.ctx, nil)
	w.ok(err)
	_, err = locked.ExecContext(w.ctx, `UPDATE job SET status = 1003 WHERE id = ?`, ids[2])
	w.ok(err)
	waiting := make(chan error, 1)
	go func() {
		_, err := w.Finish(w.ctx, 0, []storage.Outcome{outcome(ids[2], lease.Token, k, storage.Delivered)})
		waiting <- err
	}()
	eventually(t, "a finish waits for a lock", func() bool { return w.running(`UPDATE job FORCE INDEX`) })
	server.Kill()
	if err := <-waiting; !storage.IsUnavailable(err) {
		t.Errorf("a call that was waiting: %v", err)
	}
	_ = locked.Rollback()

	m := w.message(k)
	calls := map[string]func() error{
		"Ping":    func() error { return w.Ping(w.ctx) },
		"Catalog": func() error { _, err := w.Store.Catalog(w.ctx); return err },
		"Accept":  func() error { return w.Accept(w.ctx, 0, lease, []*storage.NewMessage{m}) },
		"Claim":   func() error { _, err := w.Claim(w.ctx, k.Key, lease, 1); return err },
		"Finish": func() error {
			_, err := w.Finish(w.ctx, 0, []storage.Outcome{outcome(ids[0], lease.Token, k, storage.Delivered)})
			return err
		},
		"DeadCounts":  func() error { _, err := w.DeadCounts(w.ctx); return err },
		"RequeueAll":  func() error { _, err := w.RequeueAll(w.ctx, k.Key, "consumer"); return err },
		"CountBatch":  func() error { _, err := w.CountBatch(w.ctx, 10); return err },
		"AcquireLock": func() error { _, err := w.AcquireLock(w.ctx, "l", "o", longLease); return err },
	}
	for name, call := range calls {
		for range 2 { // on a connection from before, and on one that cannot be made
			if err := call(); !storage.IsUnavailable(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}

	w.ok(server.Restart(w.ctx))
	eventually(t, "the store goes on", func() bool { return w.Ping(w.ctx) == nil })
	w.is(storage.StatusInflight, ids...)
	if n := w.shown(k); n != 4 {
		t.Errorf("%d dead, want 4", n)
	}
	w.countsRight()
	for name, call := range calls {
		if err := call(); err != nil {
			t.Errorf("%s, when it is back: %v", name, err)
		}
	}
	w.countsRight()
}
