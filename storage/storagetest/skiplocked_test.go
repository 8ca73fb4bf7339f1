package storagetest

import (
	"context"
	"database/sql/driver"
	"errors"
	"testing"
)

// plainConn is a connection without any optional interface.
type plainConn struct{ prepared []string }

func (c *plainConn) Prepare(query string) (driver.Stmt, error) {
	c.prepared = append(c.prepared, query)
	return nil, nil
}
func (*plainConn) Close() error              { return nil }
func (*plainConn) Begin() (driver.Tx, error) { return nil, nil }

func TestStripOverAPlainDriver(t *testing.T) {
	t.Parallel()
	ctx, below := t.Context(), &plainConn{}
	conn := editedConn{below, func(query string) (string, error) { return strip(query), nil }}
	if _, err := conn.PrepareContext(ctx, "SELECT 1 FOR UPDATE SKIP LOCKED"); err != nil || below.prepared[0] != "SELECT 1 FOR UPDATE" {
		t.Errorf("prepared %q: %v", below.prepared, err)
	}
	if _, err := conn.ExecContext(ctx, "X", nil); !errors.Is(err, driver.ErrSkip) {
		t.Errorf("ExecContext: %v, want ErrSkip", err)
	}
	if _, err := conn.QueryContext(ctx, "X", nil); !errors.Is(err, driver.ErrSkip) {
		t.Errorf("QueryContext: %v, want ErrSkip", err)
	}
	if err := conn.CheckNamedValue(&driver.NamedValue{}); !errors.Is(err, driver.ErrSkip) {
		t.Errorf("CheckNamedValue: %v, want ErrSkip", err)
	}
	if _, err := conn.BeginTx(ctx, driver.TxOptions{}); err != nil {
		t.Errorf("BeginTx: %v", err)
	}
	if _, err := conn.BeginTx(ctx, driver.TxOptions{ReadOnly: true}); err == nil {
		t.Error("BeginTx promises a read-only transaction that the driver cannot make")
	}
	if err := errors.Join(conn.Ping(ctx), conn.ResetSession(ctx)); err != nil || !conn.IsValid() {
		t.Errorf("Ping, ResetSession: %v, IsValid %t", err, conn.IsValid())
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := conn.PrepareContext(ended, "X"); !errors.Is(err, context.Canceled) {
		t.Errorf("PrepareContext after the end: %v", err)
	}
}
