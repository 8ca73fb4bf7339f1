package storage

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"

	"github.com/go-sql-driver/mysql"
)

// What callers tell apart with errors.Is. Everything else is a fault of the database or of ours.
var (
	ErrNotFound            = errors.New("not found")
	ErrDuplicate           = errors.New("the message id is taken in this channel")
	ErrPreconditionMissing = errors.New("the update must name the version that it changes")
	ErrPreconditionFailed  = errors.New("it was changed by somebody else")
	ErrNotDead             = errors.New("the job is not dead")
	ErrBadTransition       = errors.New("the job cannot change to that state")
	ErrLocked              = errors.New("another holder has the lock")
	ErrEngineConsumer      = errors.New("the consumer is an engine: the broker makes it, and it cannot be changed")
)

// Server error numbers, of MySQL and MariaDB; the last two are TiDB's.
const (
	errTooManyConnections = 1040
	errServerShutdown     = 1053
	errDuplicateEntry     = 1062
	errLockWaitTimeout    = 1205
	errDeadlock           = 1213
	errReadOnly           = 1290
	errTooManyOfUser      = 1203
	errUserLimit          = 1226
	errNoReferencedRow    = 1452
	errRecordChanged      = 1020
	errConnectionKilled   = 1927
	errTiDBWriteConflict  = 9007
	errTiDBTxnRetryable   = 8028
)

func mysqlErrno(err error) uint16 {
	if me, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return me.Number
	}
	return 0
}

// isTxRetryable tells errors after which the same transaction, begun anew, may well succeed. A missing referenced row
// is the consumer that was deleted between the two reads of one insert into dlq_summary: begun anew, none is tried.
func isTxRetryable(err error) bool {
	switch mysqlErrno(err) {
	case errDeadlock, errLockWaitTimeout, errRecordChanged, errNoReferencedRow, errTiDBWriteConflict, errTiDBTxnRetryable:
		return true
	}
	return false
}

func isDuplicateEntry(err error) bool { return mysqlErrno(err) == errDuplicateEntry }

// IsRejected tells whether err is the server's refusal of the statement itself or its values (SQLSTATE classes 22, 23 and
// 42), which will be the same the next time. A limit of the user's connections, which has such a state, is none.
func IsRejected(err error) bool {
	me, ok := errors.AsType[*mysql.MySQLError](err)
	if !ok || IsUnavailable(err) || isTxRetryable(err) {
		return false
	}
	switch string(me.SQLState[:2]) {
	case "22", "23", "42":
		return true
	}
	return false
}

// commitError is an error of a COMMIT.
type commitError struct{ error }

func (e commitError) Unwrap() error { return e.error }

// IsCommitUnknown tells whether err came of a COMMIT whose answer was lost: the transaction may be durable, or not.
func IsCommitUnknown(err error) bool {
	_, ok := errors.AsType[commitError](err)
	return ok && mysqlErrno(err) == 0
}

// IsUnavailable tells whether err means that the database cannot be used right now (gone, shutting down, out of
// connections, too slow), so that the same request may succeed later.
func IsUnavailable(err error) bool {
	if err == nil {
		return false
	}
	switch mysqlErrno(err) {
	case errTooManyConnections, errTooManyOfUser, errUserLimit, errServerShutdown, errReadOnly, errConnectionKilled, errLockWaitTimeout, errDeadlock:
		return true
	}
	var netErr net.Error
	return errors.As(err, &netErr) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn) || errors.Is(err, sql.ErrConnDone) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded)
}
