package storage

import (
	"context"
	"time"
)

// Lock is a named lock that was acquired: proof, by its token, of being its holder.
type Lock struct {
	ID    string
	Owner string
	Token uint64
}

// AcquireLock takes the named lock for ttl (by the database's clock), or fails with ErrLocked while another holder's
// time has not run out. A holder that lives renews it; one that crashed blocks nobody for longer than ttl.
func (s *Store) AcquireLock(ctx context.Context, id, owner string, ttl time.Duration) (Lock, error) {
	if _, err := s.db.ExecContext(ctx, "INSERT INTO `lock` (lockId, owner, token, acquiredAt, expiresAt) VALUES (?, '', 0, NOW(6), NOW(6))"+
		" ON DUPLICATE KEY UPDATE lockId = lockId", id); err != nil {
		return Lock{}, err
	}
	lock := Lock{ID: id, Owner: owner}
	// LAST_INSERT_ID(expr) hands the new token to this connection's result: no second statement, no race.
	res, err := s.db.ExecContext(ctx, "UPDATE `lock` SET owner = ?, token = LAST_INSERT_ID(token + 1), acquiredAt = NOW(6),"+
		" expiresAt = NOW(6) + INTERVAL ? MICROSECOND WHERE lockId = ? AND (owner = '' OR expiresAt <= NOW(6))", owner, micros(ttl), id)
	if err != nil {
		return Lock{}, err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return Lock{}, errOr(err, ErrLocked)
	}
	token, err := res.LastInsertId()
	lock.Token = uint64(token)
	return lock, err
}

// RenewLock extends a lock that is still held, or fails with ErrLocked: it ran out and somebody else took it.
func (s *Store) RenewLock(ctx context.Context, l Lock, ttl time.Duration) error {
	n, err := affected(ctx, s.db, "UPDATE `lock` SET expiresAt = NOW(6) + INTERVAL ? MICROSECOND WHERE lockId = ? AND owner = ? AND token = ?",
		micros(ttl), l.ID, l.Owner, l.Token)
	if err == nil && n == 0 {
		return ErrLocked
	}
	return err
}

// ReleaseLock frees the lock; of a lock that somebody else took meanwhile it changes nothing.
func (s *Store) ReleaseLock(ctx context.Context, l Lock) error {
	_, err := s.db.ExecContext(ctx, "UPDATE `lock` SET owner = '', expiresAt = NOW(6) WHERE lockId = ? AND owner = ? AND token = ?", l.ID, l.Owner, l.Token)
	return err
}

func errOr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}
