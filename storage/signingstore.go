package storage

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

const (
	maxOverlap     = 366 * 24 * time.Hour
	maxRotationKey = 255 // characters
	// firstRotation is the key of the rotation that made a consumer's first secret.
	firstRotation = "first"
)

// Rotation is a change of a subject's secrets. It holds no secret.
type Rotation struct {
	ID        ID // of the secret that it made
	CreatedAt time.Time
	// FormerUntil is when the secrets before it retire, at the latest; zero: there were none.
	FormerUntil time.Time
}

// RotateSigningSecret makes a new current secret for a consumer or a producer, and lets its former ones retire when overlap
// (0 to 366 days) has passed; those that retire sooner keep their time. Until then all of them sign and verify. Other
// instances learn of it with their next look at the catalog, within a poll's interval, which an overlap should outlast.
//
// The key (1 to 255 characters) makes it idempotent: the same key again for the same subject changes nothing and returns
// the rotation as it was, as long as the secret that it made is there. ErrNotFound: there is no such subject.
func (s *Store) RotateSigningSecret(ctx context.Context, subject SigningSubject, key string, overlap time.Duration) (Rotation, error) {
	switch {
	case overlap < 0 || overlap > maxOverlap:
		return Rotation{}, fmt.Errorf("an overlap of %v: it must be from 0 to %v", overlap, maxOverlap)
	case key == "" || utf8.RuneCountInString(key) > maxRotationKey || !utf8.ValidString(key):
		return Rotation{}, fmt.Errorf("the key of a rotation must be 1 to %d characters of UTF-8", maxRotationKey)
	}
	seals, err := s.sealer(ctx)
	if err != nil {
		return Rotation{}, err
	}
	var out Rotation
	err = s.changeIf(ctx, func(tx *sql.Tx) (changed bool, err error) {
		id, err := lockSubject(ctx, tx, subject)
		if err != nil {
			return false, err
		}
		var until sql.NullTime
		err = tx.QueryRowContext(ctx, `SELECT id, createdAt, formerUntil FROM signing_secret WHERE kind = ? AND subjectId = ? AND rotationKey = ?`,
			subject.Kind, id, key).Scan(&out.ID, &out.CreatedAt, &until)
		if out.FormerUntil = until.Time; !errors.Is(err, sql.ErrNoRows) {
			return false, err
		}
		out, err = rotate(ctx, tx, secretOf{subject.Kind, id}, seals, key, overlap)
		return true, err
	})
	if err != nil {
		return Rotation{}, fmt.Errorf("rotate the signing secret of %s: %w", subject, err)
	}
	return out, nil
}

// secretOf is whose a secret is, by the database's ids.
type secretOf struct {
	kind SigningKind
	key  uint32
}

func rotate(ctx context.Context, tx *sql.Tx, of secretOf, seals *sealer, key string, overlap time.Duration) (Rotation, error) {
	out := Rotation{ID: NewID()}
	if err := tx.QueryRowContext(ctx, `SELECT NOW(6)`).Scan(&out.CreatedAt); err != nil {
		return out, err
	}
	var former bool
	if err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM signing_secret WHERE kind = ? AND subjectId = ? AND (retiresAt IS NULL OR retiresAt > ?))`,
		of.kind, of.key, out.CreatedAt).Scan(&former); err != nil {
		return out, err
	}
	var formerUntil any
	if former {
		out.FormerUntil = out.CreatedAt.Add(overlap).Truncate(time.Microsecond)
		formerUntil = out.FormerUntil
		if _, err := tx.ExecContext(ctx, `UPDATE signing_secret SET retiresAt = ? WHERE kind = ? AND subjectId = ? AND (retiresAt IS NULL OR retiresAt > ?)`,
			out.FormerUntil, of.kind, of.key, out.FormerUntil); err != nil {
			return out, err
		}
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO signing_secret (id, kind, subjectId, secretSealed, createdAt, rotationKey, formerUntil) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		out.ID, of.kind, of.key, seals.seal(string(newSigningKey())), out.CreatedAt, key, formerUntil)
	return out, err
}

// lockSubject finds a subject and locks its row, so that its secrets change one after another and not after it is gone.
func lockSubject(ctx context.Context, tx *sql.Tx, subject SigningSubject) (id uint32, err error) {
	switch subject.Kind {
	case SigningConsumer:
		var channel uint32
		if err = tx.QueryRowContext(ctx, `SELECT id FROM channel WHERE channelId = ?`, subject.ChannelID).Scan(&channel); err == nil {
			err = tx.QueryRowContext(ctx, `SELECT id FROM consumer WHERE channelId = ? AND consumerId = ? FOR UPDATE`, channel, subject.ID).Scan(&id)
		}
	case SigningProducer:
		err = tx.QueryRowContext(ctx, `SELECT id FROM producer WHERE producerId = ? FOR UPDATE`, subject.ID).Scan(&id)
	default:
		return 0, fmt.Errorf("there is no kind %d of subjects", subject.Kind)
	}
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	return id, err
}

// RetireSigningSecrets deletes up to limit secrets whose time has passed, by the database's clock, and reports whether there may
// be more. They were out of use before.
func (s *Store) RetireSigningSecrets(ctx context.Context, limit int) (retired int64, more bool, err error) {
	err = s.changeIf(ctx, func(tx *sql.Tx) (changed bool, err error) {
		retired, err = affected(ctx, tx, `DELETE FROM signing_secret WHERE retiresAt <= NOW(6) ORDER BY retiresAt LIMIT ?`, limit)
		return retired > 0, err
	})
	if err != nil {
		return 0, false, fmt.Errorf("retire signing secrets: %w", err)
	}
	return retired, retired == int64(limit), nil
}

// EnsureSigningSecrets gives up to limit consumers that have no secret their first one, and reports whether there may be more:
// those that were made before there were secrets, or by an older program. Nobody is sent an engine's jobs, so engines have none.
// Several instances may do it at once.
func (s *Store) EnsureSigningSecrets(ctx context.Context, limit int) (made int, more bool, err error) {
	seals, err := s.sealer(ctx)
	if err != nil {
		return 0, false, err
	}
	without, err := collect(ctx, s.db, func(rows *sql.Rows) (any, error) { return scanKey(rows) },
		`SELECT id FROM consumer c WHERE type <> 'engine' AND NOT EXISTS (SELECT 1 FROM signing_secret WHERE kind = ? AND subjectId = c.id) ORDER BY id LIMIT ?`, SigningConsumer, limit)
	if err != nil || len(without) == 0 {
		return 0, false, err
	}
	err = s.changeIf(ctx, func(tx *sql.Tx) (changed bool, err error) {
		made = 0
		// Some may have got one, or may be gone, since they were read: under the lock of their rows it is looked at again.
		locked, err := collect(ctx, tx, scanKey, `SELECT id FROM consumer WHERE id IN (`+placeholders("?", len(without))+`) ORDER BY id FOR UPDATE`, without...)
		if err != nil {
			return false, err
		}
		having, err := collect(ctx, tx, scanKey, `SELECT subjectId FROM signing_secret WHERE kind = ? AND subjectId IN (`+placeholders("?", len(without))+`)`,
			append([]any{SigningConsumer}, without...)...)
		if err != nil {
			return false, err
		}
		has := make(map[uint32]bool, len(having))
		for _, key := range having {
			has[key] = true
		}
		for _, key := range locked {
			if has[key] {
				continue
			}
			if _, err := rotate(ctx, tx, secretOf{SigningConsumer, key}, seals, firstRotation, 0); err != nil {
				return false, err
			}
			made++
		}
		return made > 0, nil
	})
	if err != nil {
		return 0, false, fmt.Errorf("give consumers signing secrets: %w", err)
	}
	return made, len(without) == limit, nil
}

func scanKey(rows *sql.Rows) (key uint32, err error) { return key, rows.Scan(&key) }

// SigningSubjects lists all that have a current secret, with its age: consumers by channel, then producers, the oldest first.
func (s *Store) SigningSubjects(ctx context.Context) ([]SigningSubject, error) {
	return collect(ctx, s.db, func(rows *sql.Rows) (t SigningSubject, err error) {
		return t, rows.Scan(&t.Kind, &t.ChannelID, &t.ID, &t.CreatedAt)
	}, `SELECT s.kind, c.channelId, k.consumerId, s.createdAt FROM signing_secret s
			JOIN consumer k ON k.id = s.subjectId JOIN channel c ON c.id = k.channelId
			WHERE s.kind = 1 AND s.isCurrent = 1
		UNION ALL SELECT s.kind, '', p.producerId, s.createdAt FROM signing_secret s
			JOIN producer p ON p.id = s.subjectId WHERE s.kind = 2 AND s.isCurrent = 1
		ORDER BY 1, 2, 4, 3`)
}

// resealSigning seals a subject's secrets anew that were not sealed with the current key, so that the key before it can go
// once everything was put again. What cannot be opened stays as it is.
func resealSigning(ctx context.Context, tx *sql.Tx, of secretOf, seals *sealer) error {
	type row struct {
		id     ID
		sealed []byte
	}
	rows, err := collect(ctx, tx, func(rows *sql.Rows) (r row, err error) { return r, rows.Scan(&r.id, &r.sealed) },
		`SELECT id, secretSealed FROM signing_secret WHERE kind = ? AND subjectId = ?`, of.kind, of.key)
	if err != nil {
		return err
	}
	for _, r := range rows {
		plain, err := seals.open(r.sealed)
		if err != nil || seals.isCurrent(r.sealed) {
			continue
		}
		if _, err := tx.ExecContext(ctx, `UPDATE signing_secret SET secretSealed = ? WHERE id = ?`, seals.seal(plain), r.id); err != nil {
			return err
		}
	}
	return nil
}

// loadSigning gives producers and consumers their secrets. report is told of each subject that has one that cannot be opened: it is
// Sealed, and the others must not suffer from it.
func (c *Catalog) loadSigning(ctx context.Context, q querier, seals *sealer, clock databaseClock, report func(secretOf, SigningSubject, ID, error)) error {
	type row struct {
		signingSecret
		of     secretOf
		sealed []byte
	}
	rows, err := collect(ctx, q, func(rows *sql.Rows) (r row, err error) {
		var retiresAt sql.NullTime
		err = rows.Scan(&r.id, &r.of.kind, &r.of.key, &r.sealed, &r.createdAt, &retiresAt)
		r.retiresAt = retiresAt.Time
		return r, err
	}, `SELECT id, kind, subjectId, secretSealed, createdAt, retiresAt FROM signing_secret WHERE retiresAt IS NULL OR retiresAt > NOW(6)
		ORDER BY kind, subjectId, retiresAt IS NULL DESC, createdAt DESC, id DESC`)
	if err != nil {
		return err
	}
	for _, r := range rows {
		signing, sealed, subject := c.signingOf(r.of)
		if signing == nil {
			continue // deleted since
		}
		signing.clock = clock
		key, err := seals.open(r.sealed)
		if err != nil {
			if signing.unopened.IsZero() {
				signing.unopened = r.id
			}
			if !*sealed { // else it was told of, for its token or another secret
				report(r.of, subject, r.id, err)
			}
			*sealed = true
			continue
		}
		r.key = []byte(key)
		signing.secrets = append(signing.secrets, r.signingSecret)
	}
	return nil
}

// signingOf returns where a subject's secrets and whether it is Sealed are kept; nil where the catalog does not have it.
func (c *Catalog) signingOf(of secretOf) (signing *SigningSecrets, sealed *bool, subject SigningSubject) {
	switch of.kind {
	case SigningConsumer:
		if k, ok := c.consumerByKey[of.key]; ok {
			return &k.Signing, &k.Sealed, SigningSubject{Kind: of.kind, ChannelID: k.ChannelID, ID: k.ID}
		}
	case SigningProducer:
		if p, ok := c.producerByKey[of.key]; ok {
			return &p.Signing, &p.Sealed, SigningSubject{Kind: of.kind, ID: p.ID}
		}
	}
	return nil, nil, subject
}
