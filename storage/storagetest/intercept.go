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
	return Intercept(connector, func(query string) (string, error) { return strip(query), nil })
}

func strip(query string) string { return skipLocked.ReplaceAllLiteralString(query, "") }

// Intercept returns a connector that hands every statement to edit before it is sent. An error of edit is the
// statement's, which is then not sent; driver.ErrBadConn also ends the connection, as a network that failed would. COMMIT is
// handed over after it was sent, so that its error is that of an answer which was lost. Edit is called by many goroutines.
func Intercept(connector driver.Connector, edit func(query string) (string, error)) driver.Connector {
	return editedConnector{connector, edit}
}

type editedConnector struct {
	driver.Connector
	edit func(string) (string, error)
}

func (c editedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return editedConn{conn, c.edit}, nil
}

// Close is what database/sql calls when the pool is closed.
func (c editedConnector) Close() error {
	if closer, ok := c.Connector.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// editedConn has every optional interface of a connection. For one that the connection below lacks it
// answers as database/sql would have done without it.
type editedConn struct {
	driver.Conn
	edit func(string) (string, error)
}

var _ interface {
	driver.Pinger
	driver.ExecerContext
	driver.QueryerContext
	driver.ConnPrepareContext
	driver.ConnBeginTx
	driver.SessionResetter
	driver.Validator
	driver.NamedValueChecker
} = editedConn{}

func (c editedConn) Prepare(query string) (driver.Stmt, error) {
	query, err := c.edit(query)
	if err != nil {
		return nil, err
	}
	return c.Conn.Prepare(query)
}

func (c editedConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if conn, ok := c.Conn.(driver.ConnPrepareContext); ok {
		query, err := c.edit(query)
		if err != nil {
			return nil, err
		}
		return conn.PrepareContext(ctx, query)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return c.Prepare(query)
}

func (c editedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	conn, ok := c.Conn.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip // database/sql prepares it then
	}
	query, err := c.edit(query)
	if err != nil {
		return nil, err
	}
	return conn.ExecContext(ctx, query, args)
}

func (c editedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	conn, ok := c.Conn.(driver.QueryerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	query, err := c.edit(query)
	if err != nil {
		return nil, err
	}
	return conn.QueryContext(ctx, query, args)
}

func (c editedConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.begin(ctx, opts)
	if err != nil {
		return nil, err
	}
	return editedTx{tx, c.edit}, nil
}

func (c editedConn) begin(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
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

// editedTx is a transaction whose COMMIT is handed to edit once it was sent.
type editedTx struct {
	driver.Tx
	edit func(string) (string, error)
}

func (t editedTx) Commit() error {
	if err := t.Tx.Commit(); err != nil {
		return err
	}
	_, err := t.edit("COMMIT")
	return err
}

func (c editedConn) Ping(ctx context.Context) error {
	if conn, ok := c.Conn.(driver.Pinger); ok {
		return conn.Ping(ctx)
	}
	return nil
}

func (c editedConn) ResetSession(ctx context.Context) error {
	if conn, ok := c.Conn.(driver.SessionResetter); ok {
		return conn.ResetSession(ctx)
	}
	return nil
}

func (c editedConn) IsValid() bool {
	if conn, ok := c.Conn.(driver.Validator); ok {
		return conn.IsValid()
	}
	return true
}

func (c editedConn) CheckNamedValue(value *driver.NamedValue) error {
	if conn, ok := c.Conn.(driver.NamedValueChecker); ok {
		return conn.CheckNamedValue(value)
	}
	return driver.ErrSkip
}
