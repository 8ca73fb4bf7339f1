package storage_test

import (
	"context"
	"database/sql/driver"
	"sync"
)

// recorder keeps the statements that a store sends, so that tests explain the real ones and not copies.
type recorder struct {
	// before, where it is set, is called with every statement before it is sent.
	before func(query string)

	mu         sync.Mutex
	statements []statement
}

type statement struct {
	query string
	args  []any
}

func (r *recorder) add(query string, args []driver.NamedValue) {
	if r.before != nil {
		r.before(query)
	}
	values := make([]any, len(args))
	for i, a := range args {
		values[i] = a.Value
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.statements = append(r.statements, statement{query, values})
}

// take returns what was sent since the last call.
func (r *recorder) take() []statement {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.statements
	r.statements = nil
	return out
}

func (r *recorder) wrap(c driver.Connector) driver.Connector { return recordingConnector{c, r} }

type recordingConnector struct {
	driver.Connector
	recorder *recorder
}

func (c recordingConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return recordingConn{conn.(fullConn), c.recorder}, nil
}

// fullConn is what the MySQL driver's connections can do.
type fullConn interface {
	driver.Conn
	driver.Pinger
	driver.ExecerContext
	driver.QueryerContext
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.SessionResetter
	driver.Validator
	driver.NamedValueChecker
}

type recordingConn struct {
	fullConn
	recorder *recorder
}

func (c recordingConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.recorder.add(query, args)
	return c.fullConn.ExecContext(ctx, query, args)
}

func (c recordingConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.recorder.add(query, args)
	return c.fullConn.QueryContext(ctx, query, args)
}
