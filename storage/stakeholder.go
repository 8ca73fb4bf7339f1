package storage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// PutStakeholder creates a producer or channel, or changes it.
type PutStakeholder struct {
	ID, Name, Token string
	// IfUnmodifiedSince is the ChangedAt of the version that an update changes, at whole seconds; it is not looked
	// at when the stakeholder is created. Nil: the client named none.
	IfUnmodifiedSince *time.Time
	// History of a channel's deliveries; nil: as it is. Of channels alone.
	History *HistoryPolicy
}

// PutConsumer creates a consumer of a channel, or changes it.
type PutConsumer struct {
	PutStakeholder
	ChannelKey  uint32
	Type        ConsumerType
	CallbackURL string
}

// never is the last_checked_at of a consumer that no counting cycle has covered yet.
const never = `'1970-01-01 00:00:00'`

// PutProducer creates or updates. An update fails with ErrPreconditionMissing or ErrPreconditionFailed where it does
// not name the current version.
func (s *Store) PutProducer(ctx context.Context, p PutStakeholder) (*Producer, error) {
	seals, err := s.sealer(ctx)
	if err != nil {
		return nil, err
	}
	var out *Producer
	err = s.change(ctx, func(tx *sql.Tx) error {
		v, err := upsert{
			find:   `SELECT id, changedAt, NOW(6) FROM producer WHERE producerId = ? FOR UPDATE`,
			insert: `INSERT INTO producer (name, tokenHash, changedAt, createdAt, producerId) VALUES (?, ?, ?, NOW(6), ?)`,
			update: `UPDATE producer SET name = ?, tokenHash = ?, changedAt = ? WHERE id = ?`,
		}.run(ctx, tx, p.IfUnmodifiedSince, []any{p.ID}, []any{p.Name, []byte(hashToken(p.Token))}, []any{p.ID})
		if err != nil {
			return err
		}
		out = &Producer{Key: v.key, ID: p.ID, Name: p.Name, ChangedAt: v.changedAt}
		return resealSigning(ctx, tx, secretOf{SigningProducer, v.key}, seals)
	})
	return out, err
}

// PutChannel creates or updates, as PutProducer does.
func (s *Store) PutChannel(ctx context.Context, p PutStakeholder) (*Channel, error) {
	var out *Channel
	err := s.change(ctx, func(tx *sql.Tx) error {
		v, err := upsert{
			find:   `SELECT id, changedAt, NOW(6) FROM channel WHERE channelId = ? FOR UPDATE`,
			insert: `INSERT INTO channel (name, tokenHash, changedAt, createdAt, channelId) VALUES (?, ?, ?, NOW(6), ?)`,
			update: `UPDATE channel SET name = ?, tokenHash = ?, changedAt = ? WHERE id = ?`,
		}.run(ctx, tx, p.IfUnmodifiedSince, []any{p.ID}, []any{p.Name, []byte(hashToken(p.Token))}, []any{p.ID})
		if err != nil {
			return err
		}
		out = &Channel{Key: v.key, ID: p.ID, Name: p.Name, ChangedAt: v.changedAt}
		if p.History != nil {
			if _, err := tx.ExecContext(ctx, `UPDATE channel SET history = ? WHERE id = ?`, *p.History, v.key); err != nil {
				return err
			}
		}
		if err := tx.QueryRowContext(ctx, `SELECT history FROM channel WHERE id = ?`, v.key).Scan(&out.History); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE dlq_summary SET channelName = ? WHERE channelId = ?`, p.Name, p.ID)
		return err
	})
	return out, err
}

// PutConsumer creates or updates, as PutProducer does. A new consumer is in dlq_summary with a count of 0 at once, and has
// its first signing secret: what is pushed to it is signed from the first delivery on. ErrEngineConsumer of an engine,
// which PutEngineQueue makes and nobody changes.
func (s *Store) PutConsumer(ctx context.Context, p PutConsumer) (*Consumer, error) {
	seals, err := s.sealer(ctx)
	if err != nil {
		return nil, err
	}
	var out *Consumer
	err = s.change(ctx, func(tx *sql.Tx) error {
		if err := notAnEngine(ctx, tx, p); err != nil {
			return err
		}
		v, err := upsert{
			find: `SELECT id, changedAt, NOW(6) FROM consumer WHERE channelId = ? AND consumerId = ? FOR UPDATE`,
			insert: `INSERT INTO consumer (name, type, callbackUrl, tokenSealed, changedAt, createdAt, channelId, consumerId)
			         VALUES (?, ?, ?, ?, ?, NOW(6), ?, ?)`,
			update: `UPDATE consumer SET name = ?, type = ?, callbackUrl = ?, tokenSealed = ?, changedAt = ? WHERE id = ?`,
		}.run(ctx, tx, p.IfUnmodifiedSince, []any{p.ChannelKey, p.ID},
			[]any{p.Name, string(p.Type), p.CallbackURL, seals.seal(p.Token)}, []any{p.ChannelKey, p.ID})
		if err != nil {
			return err
		}
		out = &Consumer{Key: v.key, ChannelKey: p.ChannelKey, ID: p.ID, Name: p.Name, Type: p.Type,
			CallbackURL: p.CallbackURL, Token: p.Token, ChangedAt: v.changedAt}
		of := secretOf{SigningConsumer, v.key}
		if err := resealSigning(ctx, tx, of, seals); err != nil {
			return err
		}
		if v.created {
			if _, err := rotate(ctx, tx, of, seals, firstRotation, 0); err != nil {
				return err
			}
		}
		return summarize(ctx, tx, out)
	})
	return out, err
}

// summarize puts a consumer into dlq_summary, or its name as it is now.
func summarize(ctx context.Context, tx *sql.Tx, k *Consumer) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO dlq_summary (consumerId, consumerName, channelId, channelName, dead_count, last_checked_at)
		SELECT ?, ?, channelId, name, 0, `+never+` FROM channel WHERE id = ?
		ON DUPLICATE KEY UPDATE consumerName = ?`, k.Key, k.Name, k.ChannelKey, k.Name)
	return err
}

func notAnEngine(ctx context.Context, tx *sql.Tx, p PutConsumer) error {
	if p.Type == TypeEngine {
		return ErrEngineConsumer
	}
	var kind ConsumerType
	err := tx.QueryRowContext(ctx, `SELECT type FROM consumer WHERE channelId = ? AND consumerId = ?`, p.ChannelKey, p.ID).Scan(&kind)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err == nil && kind == TypeEngine:
		return ErrEngineConsumer
	}
	return err
}

// DeleteConsumer removes a consumer at the version that the caller names. Its jobs leave in bounded batches
// afterwards (RemoveJobs): from now on nobody gets, sees or counts them.
func (s *Store) DeleteConsumer(ctx context.Context, consumerKey uint32, ifUnmodifiedSince time.Time) error {
	return s.change(ctx, func(tx *sql.Tx) error {
		var changedAt time.Time
		err := tx.QueryRowContext(ctx, `SELECT changedAt FROM consumer WHERE id = ? FOR UPDATE`, consumerKey).Scan(&changedAt)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNotFound
		}
		if err != nil {
			return err
		}
		if !sameSecond(changedAt, ifUnmodifiedSince) {
			return ErrPreconditionFailed
		}
		for _, stmt := range []string{
			`INSERT INTO consumer_removal (consumerId, deletedAt) VALUES (?, NOW(6))`,
			`DELETE FROM dlq_summary WHERE consumerId = ?`,
			`DELETE FROM destination_health WHERE consumerId = ?`,
			`DELETE FROM signing_secret WHERE kind = 1 AND subjectId = ?`,
			`DELETE FROM consumer WHERE id = ?`,
		} {
			if _, err := tx.ExecContext(ctx, stmt, consumerKey); err != nil {
				return err
			}
		}
		return nil
	})
}

// change runs fn and raises the catalog's version in one transaction. Two creations of one thing at once meet at the unique
// key; the loser runs again and finds what the winner made.
func (s *Store) change(ctx context.Context, fn func(tx *sql.Tx) error) error {
	return s.changeIf(ctx, func(tx *sql.Tx) (bool, error) { return true, fn(tx) })
}

// changeIf is change of what fn says it changed. It may make two things, and so lose twice.
func (s *Store) changeIf(ctx context.Context, fn func(tx *sql.Tx) (changed bool, err error)) error {
	attempt := func() error {
		return s.inTx(ctx, func(tx *sql.Tx) error {
			changed, err := fn(tx)
			if err != nil || !changed {
				return err
			}
			_, err = tx.ExecContext(ctx, `UPDATE catalog SET version = version + 1 WHERE id = 1`)
			return err
		})
	}
	err := attempt()
	for range 2 {
		if isDuplicateEntry(err) {
			err = attempt()
		}
	}
	return err
}

// upsert is a conditional create-or-update: find reads (id, changedAt, now), insert ends with (changedAt, identity),
// update with (changedAt, id).
type upsert struct{ find, insert, update string }

type version struct {
	key       uint32
	changedAt time.Time
	created   bool
}

func (u upsert) run(ctx context.Context, tx *sql.Tx, since *time.Time, identity, values, insertTail []any) (version, error) {
	var v version
	var changedAt, now time.Time
	err := tx.QueryRowContext(ctx, u.find, identity...).Scan(&v.key, &changedAt, &now)
	if errors.Is(err, sql.ErrNoRows) {
		if err := tx.QueryRowContext(ctx, `SELECT NOW(6)`).Scan(&now); err != nil {
			return v, err
		}
		v.changedAt, v.created = now.Truncate(time.Second), true
		res, err := tx.ExecContext(ctx, u.insert, append(append(values, v.changedAt), insertTail...)...)
		if err != nil {
			return v, err
		}
		id, err := res.LastInsertId()
		v.key = uint32(id)
		return v, err
	}
	if err != nil {
		return v, err
	}
	if since == nil {
		return v, ErrPreconditionMissing
	}
	if !sameSecond(changedAt, *since) {
		return v, ErrPreconditionFailed
	}
	v.changedAt = nextVersion(changedAt, now)
	n, err := affected(ctx, tx, u.update, append(append(values, v.changedAt), v.key)...)
	if err == nil && n != 1 {
		err = fmt.Errorf("an update of one row changed %d", n)
	}
	return v, err
}

// nextVersion makes changedAt another whole second at every change, also for two changes in one second: clients
// compare it as an HTTP date.
func nextVersion(previous, now time.Time) time.Time {
	next := now.Truncate(time.Second)
	if earliest := previous.Truncate(time.Second).Add(time.Second); next.Before(earliest) {
		return earliest
	}
	return next
}

func sameSecond(a, b time.Time) bool { return a.Truncate(time.Second).Equal(b.Truncate(time.Second)) }
