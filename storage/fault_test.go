package storage_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/go-sql-driver/mysql"

	"github.com/redrive-mq/redrive/storage"
)

// What follows are faults of the driver that no real server produces on demand.

type mockConnector struct {
	driver driver.Driver
	dsn    string
}

func (c mockConnector) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(c.dsn) }
func (c mockConnector) Driver() driver.Driver                        { return c.driver }

// faulty is a store on a driver that does what the test says.
func faulty(t *testing.T) (*storage.Store, sqlmock.Sqlmock) {
	t.Helper()
	name := t.Name() + storage.NewToken()
	db, mock, err := sqlmock.NewWithDSN(name)
	if err != nil {
		t.Fatal(err)
	}
	s, err := storage.Open(storage.Options{DSN: "u@tcp(127.0.0.1:1)/d", WrapConnector: func(driver.Connector) driver.Connector {
		return mockConnector{db.Driver(), name}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mock.ExpectationsWereMet(); err != nil {
			t.Error(err)
		}
		_, _ = s.Close(), db.Close()
	})
	return s, mock
}

var (
	errDriver   = errors.New("the driver failed")
	errDeadlock = &mysql.MySQLError{Number: 1213, Message: "deadlock"}
)

func expectRequeue(mock sqlmock.Sqlmock) *sqlmock.ExpectedExec {
	mock.ExpectBegin()
	mock.ExpectQuery(`FROM consumer k`).WillReturnRows(sqlmock.NewRows([]string{"consumerId", "type", "channelId"}).AddRow("k", "push", "orders"))
	mock.ExpectQuery(`SELECT j.status`).WillReturnRows(sqlmock.NewRows([]string{"status", "statusChangedAt", "dlqCounted", "messageId"}).
		AddRow(1004, time.Unix(1, 0), 0, "m1"))
	return mock.ExpectExec(`UPDATE job`)
}

// expectRecords is what follows the requeue of a job that went well.
func expectRecords(mock sqlmock.Sqlmock) {
	mock.ExpectExec("UPDATE `engineDlq`").WillReturnResult(sqlmock.NewResult(0, 1))
	mock.ExpectExec("INSERT INTO `engineHistory`").WillReturnResult(sqlmock.NewResult(0, 1))
}

func TestTransactionFaults(t *testing.T) {
	t.Parallel()
	one := sqlmock.NewResult(0, 1)
	for _, tt := range []struct {
		name   string
		expect func(mock sqlmock.Sqlmock)
		want   error
	}{
		{"begin fails", func(mock sqlmock.Sqlmock) { mock.ExpectBegin().WillReturnError(errDriver) }, errDriver},
		{"commit fails", func(mock sqlmock.Sqlmock) {
			expectRequeue(mock).WillReturnResult(one)
			expectRecords(mock)
			mock.ExpectCommit().WillReturnError(errDriver)
		}, errDriver},
		{"statement fails", func(mock sqlmock.Sqlmock) {
			expectRequeue(mock).WillReturnError(errDriver)
			mock.ExpectRollback()
		}, errDriver},
		{"rows affected are unknown", func(mock sqlmock.Sqlmock) {
			expectRequeue(mock).WillReturnResult(sqlmock.NewErrorResult(errDriver))
			mock.ExpectRollback()
		}, errDriver},
		{"a rollback fails too", func(mock sqlmock.Sqlmock) {
			expectRequeue(mock).WillReturnError(errDriver)
			mock.ExpectRollback().WillReturnError(errors.New("and again"))
		}, errDriver},
		{"deadlocks, then success", func(mock sqlmock.Sqlmock) {
			expectRequeue(mock).WillReturnError(errDeadlock)
			mock.ExpectRollback()
			expectRequeue(mock).WillReturnResult(one)
			expectRecords(mock)
			mock.ExpectCommit().WillReturnError(&mysql.MySQLError{Number: 1205})
			expectRequeue(mock).WillReturnError(&mysql.MySQLError{Number: 1020})
			mock.ExpectRollback()
			expectRequeue(mock).WillReturnResult(one)
			expectRecords(mock)
			mock.ExpectCommit()
		}, nil},
		{"deadlocks without end", func(mock sqlmock.Sqlmock) {
			for range 12 {
				expectRequeue(mock).WillReturnError(errDeadlock)
				mock.ExpectRollback()
			}
		}, errDeadlock},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, mock := faulty(t)
			tt.expect(mock)
			if err := s.RequeueOne(t.Context(), 1, storage.NewID(), "consumer"); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
}

// deadlocking is a driver whose queries all meet a deadlock.
type deadlocking struct{ rolledBack func() }

func (d deadlocking) Connect(context.Context) (driver.Conn, error) { return d, nil }
func (d deadlocking) Driver() driver.Driver                        { return nil }
func (d deadlocking) Prepare(string) (driver.Stmt, error)          { return nil, errDriver }
func (d deadlocking) Close() error                                 { return nil }
func (d deadlocking) Begin() (driver.Tx, error)                    { return d, nil }
func (d deadlocking) Commit() error                                { return errDriver }
func (d deadlocking) Rollback() error                              { d.rolledBack(); return nil }
func (d deadlocking) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return nil, errDeadlock
}

// TestDeadlocksEndWithTheContext has the caller give up while a transaction is tried again and again.
func TestDeadlocksEndWithTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	attempts := 0
	s, err := storage.Open(storage.Options{DSN: "u@tcp(127.0.0.1:1)/d", WrapConnector: func(driver.Connector) driver.Connector {
		return deadlocking{func() {
			if attempts++; attempts == 3 {
				cancel()
			}
		}}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.RequeueOne(ctx, 1, storage.NewID(), "consumer"); !errors.Is(err, context.Canceled) || attempts != 3 {
		t.Errorf("after %d attempts: %v", attempts, err)
	}
}

func TestAPanicRollsBack(t *testing.T) {
	t.Parallel()
	s, mock := faulty(t)
	id := storage.NewID()
	mock.ExpectBegin()
	mock.ExpectQuery(`SELECT s.messageId`).WillReturnRows(sqlmock.NewRows([]string{"messageId", "channelId", "priority"}).AddRow(id[:], 1, 0))
	mock.ExpectRollback()
	defer func() {
		if r := recover(); r != "from the caller" {
			t.Errorf("recovered %v", r)
		}
	}()
	_, _ = s.DispatchScheduled(t.Context(), 0, 10, func(uint32) []uint32 { panic("from the caller") })
	t.Error("the panic was swallowed")
}

// TestBrokenRows has a result end in the middle: what was read so far must not pass for all there is.
func TestBrokenRows(t *testing.T) {
	t.Parallel()
	id := storage.NewID()
	now := time.Now()
	for name, tt := range map[string]struct {
		rows *sqlmock.Rows
		call func(s *storage.Store) (int, error)
	}{
		"DeadCounts": {sqlmock.NewRows([]string{"a", "b", "c", "d", "e", "f", "g", "h", "i"}).
			AddRow(1, "c", "C", "k", "K", 1, 0, nil, now).AddRow(2, "c", "C", "l", "L", 1, 0, nil, now),
			func(s *storage.Store) (int, error) { _, err := s.DeadCounts(t.Context()); return 0, err }},
		"FindWork": {sqlmock.NewRows([]string{"a", "b", "c", "d"}).AddRow(1, true, nil, nil).AddRow(2, true, nil, nil),
			func(s *storage.Store) (int, error) { v, err := s.FindWork(t.Context()); return len(v), err }},
		"CountBatch": {sqlmock.NewRows([]string{"a", "b"}).AddRow(id[:], 1).AddRow(id[:], 1),
			func(s *storage.Store) (int, error) { v, err := s.CountBatch(t.Context(), 10); return v.Counted, err }},
		"Messages": {sqlmock.NewRows([]string{"a", "b"}).AddRow(id[:], "x").AddRow(id[:], "y"),
			func(s *storage.Store) (int, error) {
				v, _, err := s.Messages(t.Context(), 1, nil, 10)
				return len(v), err
			}},
		"RemoveJobs": {sqlmock.NewRows([]string{"a"}).AddRow(1).AddRow(2),
			func(s *storage.Store) (int, error) { n, _, err := s.RemoveJobs(t.Context(), 10); return int(n), err }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, mock := faulty(t)
			mock.ExpectQuery(`SELECT`).WillReturnRows(tt.rows.RowError(1, errDriver))
			if n, err := tt.call(s); !errors.Is(err, errDriver) || n != 0 {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
}
