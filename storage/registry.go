package storage

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"
)

// Registry is what engines keep of an instance, with its lock (RFC-72, 1.8).
type Registry struct {
	ID        string
	Version   uint64 // rises with every change; 0: there is none yet
	LockJobID string // who has the lock; empty: nobody
	// LockDuration is how long the lock was taken for, in whole seconds.
	LockDuration time.Duration
	LockUntil    *time.Time      // by the database's clock; nil: nobody has the lock
	Document     json.RawMessage // nil: none
}

// Errors of registries.
var (
	// ErrRegistryLocked: another job has the registry's lock, and it has not expired.
	ErrRegistryLocked = errors.New("the registry is locked by another job")
	// ErrRegistryChanged: the registry has another version by now, or the lock is not the caller's (any more).
	ErrRegistryChanged = errors.New("the registry was changed, or its lock was lost")
)

const registryColumns = `registryId, registryVersion, IF(lockUntilUtc > NOW(6), lockJobId, ''), lockDurationSeconds, IF(lockUntilUtc > NOW(6), lockUntilUtc, NULL), document`

// Registry reads one. A lock that has expired is none. One that is not there has version 0, and no error.
func (s *Store) Registry(ctx context.Context, id string) (Registry, error) {
	r := Registry{ID: id}
	var until sql.NullTime
	var document sql.NullString
	var seconds int64
	err := s.db.QueryRowContext(ctx, `SELECT `+registryColumns+` FROM registry WHERE registryId = ?`, id).
		Scan(&r.ID, &r.Version, &r.LockJobID, &seconds, &until, &document)
	if errors.Is(err, sql.ErrNoRows) {
		return r, nil
	}
	if until.Valid {
		r.LockUntil = &until.Time
	}
	if document.Valid {
		r.Document = json.RawMessage(document.String)
	}
	r.LockDuration = time.Duration(seconds) * time.Second
	return r, err
}

// registryRaces is how often LockRegistry meets another's change before it calls the registry locked.
const registryRaces = 10

// LockRegistry takes the lock of a registry, which it makes where there is none, for a duration of whole seconds, and
// returns the registry as it is then. A job that has the lock gets it again, for that long from now. ErrRegistryLocked.
func (s *Store) LockRegistry(ctx context.Context, id, jobID string, duration time.Duration) (Registry, error) {
	seconds := max(1, int64(duration/time.Second))
	for range registryRaces {
		r, err := s.Registry(ctx, id)
		if err != nil {
			return r, err
		}
		if r.LockJobID != "" && r.LockJobID != jobID {
			return r, ErrRegistryLocked
		}
		var n int64
		if r.Version == 0 {
			n, err = affected(ctx, s.db, `INSERT INTO registry (registryId, registryVersion, lockJobId, lockDurationSeconds, lockUntilUtc, updatedAtUtc)
				VALUES (?, 1, ?, ?, NOW(6) + INTERVAL ? SECOND, NOW(6)) ON DUPLICATE KEY UPDATE registryId = registryId`, id, jobID, seconds, seconds)
		} else {
			// The version alone decides: whoever changed the registry, the lock included, raised it.
			n, err = affected(ctx, s.db, `UPDATE registry SET lockJobId = ?, lockDurationSeconds = ?, lockUntilUtc = NOW(6) + INTERVAL ? SECOND,
				registryVersion = registryVersion + 1, updatedAtUtc = NOW(6) WHERE registryId = ? AND registryVersion = ?`, jobID, seconds, seconds, id, r.Version)
		}
		if err != nil {
			return r, err
		}
		if n == 1 {
			return s.Registry(ctx, id)
		}
	}
	return Registry{ID: id}, ErrRegistryLocked
}

// UpdateRegistry changes the document of a registry whose lock the job has, from the version that it read to the next,
// which is returned. ErrRegistryChanged.
func (s *Store) UpdateRegistry(ctx context.Context, id, jobID string, version uint64, document json.RawMessage) (uint64, error) {
	n, err := affected(ctx, s.db, `UPDATE registry SET document = ?, registryVersion = registryVersion + 1, updatedAtUtc = NOW(6)
		WHERE registryId = ? AND registryVersion = ? AND lockJobId = ? AND lockUntilUtc > NOW(6)`, string(document), id, version, jobID)
	if err == nil && n != 1 {
		err = ErrRegistryChanged
	}
	return version + 1, err
}

// UnlockRegistry gives the lock back. Of a lock that is not the job's (any more) nothing is changed, and that is no error.
func (s *Store) UnlockRegistry(ctx context.Context, id, jobID string) error {
	_, err := s.db.ExecContext(ctx, `UPDATE registry SET lockJobId = '', lockUntilUtc = NULL, registryVersion = registryVersion + 1, updatedAtUtc = NOW(6)
		WHERE registryId = ? AND lockJobId = ?`, id, jobID)
	return err
}
