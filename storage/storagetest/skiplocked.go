package storagetest

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"regexp"
)

var skipLocked = regexp.MustCompile(`(?i)\s+SKIP\s+LOCKED\b`)

// StripSkipLocked returns a connector that takes SKIP LOCKED out of every statement, as if the server had
// never heard of it: TiDB reads the words and waits for the rows all the same. What is correct only
// because others' rows are skipped fails on it. Everything else passes through unchanged.
func StripSkipLocked(connector driver.Connector) driver.Connector {
	return strippedConnector{connector}
}

func strip(query string) string { return skipLocked.ReplaceAllLiteralString(query, "") }

type strippedConnector struct{ driver.Connector }

func (c strippedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return strippedConn{conn}, nil
}

// Close is what database/sql calls when the pool is closed.
func (c strippedConnector) Close() error {
	if closer, ok := c.Connector.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// strippedConn has every optional interface of a connection. For one that the connection below lacks it
// answers as database/sql would have done without it.
type strippedConn struct{ driver.Conn }

var _ interface {
	driver.Pinger
	driver.ExecerContext
	driver.QueryerContext
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.SessionResetter
	driver.Validator
	driver.NamedValueChecker
} = strippedConn{}

func (c strippedConn) Prepare(query string) (driver.Stmt, error) {
	return c.Conn.Prepare(strip(query))
}

func (c strippedConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if conn, ok := c.Conn.(driver.ConnPrepareContext); ok {
		return conn.PrepareContext(ctx, strip(query))
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return c.Prepare(query)
}

func (c strippedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if conn, ok := c.Conn.(driver.ExecerContext); ok {
		return conn.ExecContext(ctx, strip(query), args)
	}
	return nil, driver.ErrSkip // database/sql prepares it then
}

func (c strippedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if conn, ok := c.Conn.(driver.QueryerContext); ok {
		return conn.QueryContext(ctx, strip(query), args)
	}
	return nil, driver.ErrSkip
}

func (c strippedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if conn, ok := c.Conn.(driver.ConnBeginTx); ok {
		return conn.BeginTx(ctx, opts)
	}
	if opts != (driver.TxOptions{}) {
		return nil, errors.New("the driver knows neither isolation levels nor read-only transactions")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return c.Begin()
}

func (c strippedConn) Ping(ctx context.Context) error {
	if conn, ok := c.Conn.(driver.Pinger); ok {
		return conn.Ping(ctx)
	}
	return nil
}

func (c strippedConn) ResetSession(ctx context.Context) error {
	if conn, ok := c.Conn.(driver.SessionResetter); ok {
		return conn.ResetSession(ctx)
	}
	return nil
}

func (c strippedConn) IsValid() bool {
	if conn, ok := c.Conn.(driver.Validator); ok {
		return conn.IsValid()
	}
	return true
}

func (c strippedConn) CheckNamedValue(value *driver.NamedValue) error {
	if conn, ok := c.Conn.(driver.NamedValueChecker); ok {
		return conn.CheckNamedValue(value)
	}
	return driver.ErrSkip
}
