package storage

import (
	"context"
	"database/sql"
	"strings"
	"time"
)

// HealthState is what is known of a destination.
type HealthState string

// The states, as they are stored.
const (
	HealthUnknown HealthState = "unknown" // nobody has looked yet, or too few times to tell
	Healthy       HealthState = "healthy"
	Unhealthy     HealthState = "unhealthy"
)

// maxHealthError is the width of destination_health.lastError, in characters.
const maxHealthError = 512

// DestinationHealth is what is known of a push consumer's destination.
type DestinationHealth struct {
	ConsumerKey           uint32
	ChannelID, ConsumerID string // on the wire; read, never stored
	State                 HealthState
	Since, CheckedAt      time.Time     // of the state and of the last probe; zero: there was none
	Failures, Successes   uint32        // probes in a row, up to the last: one of them is 0
	Class, Error          string        // why the last probe failed; empty: it succeeded
	Latency               time.Duration // of the last probe, kept in milliseconds
}

// DestinationFilter selects destinations; zero values select all.
type DestinationFilter struct {
	ChannelID string
	State     HealthState
}

// PutDestinationHealth stores what probes found out, all of it in one statement. Of a destination of which something
// later is known, and of a consumer that was deleted, nothing is changed. Errors of more than 512 characters are cut.
func (s *Store) PutDestinationHealth(ctx context.Context, found []DestinationHealth) error {
	if len(found) == 0 {
		return nil
	}
	const row = `SELECT ? AS consumerId, ? AS state, CAST(? AS DATETIME(6)) AS since, CAST(? AS DATETIME(6)) AS checkedAt, ? AS failures, ? AS successes,
		? AS lastClass, ? AS lastError, ? AS latencyMs`
	args := make([]any, 0, 9*len(found))
	for _, d := range found {
		if runes := []rune(d.Error); len(runes) > maxHealthError {
			d.Error = string(runes[:maxHealthError])
		}
		args = append(args, d.ConsumerKey, string(d.State), d.Since.UTC(), d.CheckedAt.UTC(), d.Failures, d.Successes, d.Class, d.Error, d.Latency.Milliseconds())
	}
	// checkedAt last: assignments are made from left to right, and the others look at the former one.
	query := `INSERT INTO destination_health (consumerId, state, since, checkedAt, failures, successes, lastClass, lastError, latencyMs)
		SELECT t.consumerId, t.state, t.since, t.checkedAt, t.failures, t.successes, t.lastClass, t.lastError, t.latencyMs
		FROM (` + row + strings.Repeat(` UNION ALL `+row, len(found)-1) + `) t JOIN consumer c ON c.id = t.consumerId
		ON DUPLICATE KEY UPDATE
			state = IF(t.checkedAt >= destination_health.checkedAt, t.state, destination_health.state),
			since = IF(t.checkedAt >= destination_health.checkedAt, t.since, destination_health.since),
			failures = IF(t.checkedAt >= destination_health.checkedAt, t.failures, destination_health.failures),
			successes = IF(t.checkedAt >= destination_health.checkedAt, t.successes, destination_health.successes),
			lastClass = IF(t.checkedAt >= destination_health.checkedAt, t.lastClass, destination_health.lastClass),
			lastError = IF(t.checkedAt >= destination_health.checkedAt, t.lastError, destination_health.lastError),
			latencyMs = IF(t.checkedAt >= destination_health.checkedAt, t.latencyMs, destination_health.latencyMs),
			checkedAt = GREATEST(t.checkedAt, destination_health.checkedAt)`
	return Retry(ctx, func() error {
		_, err := s.db.ExecContext(ctx, query, args...)
		return err
	})
}

const selectDestinations = `SELECT c.id, ch.channelId, c.consumerId, COALESCE(h.state, 'unknown'), h.since, h.checkedAt,
	COALESCE(h.failures, 0), COALESCE(h.successes, 0), COALESCE(h.lastClass, ''), COALESCE(h.lastError, ''), COALESCE(h.latencyMs, 0)
	FROM consumer c JOIN channel ch ON ch.id = c.channelId LEFT JOIN destination_health h ON h.consumerId = c.id
	WHERE c.type = 'push'`

func scanDestination(rows *sql.Rows) (d DestinationHealth, err error) {
	var since, checked sql.NullTime
	var ms int64
	err = rows.Scan(&d.ConsumerKey, &d.ChannelID, &d.ConsumerID, &d.State, &since, &checked, &d.Failures, &d.Successes, &d.Class, &d.Error, &ms)
	d.Since, d.CheckedAt, d.Latency = since.Time, checked.Time, time.Duration(ms)*time.Millisecond
	return d, err
}

// DestinationHealth reads what is known of every push consumer's destination, in one statement, the oldest consumer first.
func (s *Store) DestinationHealth(ctx context.Context) ([]DestinationHealth, error) {
	return collect(ctx, s.db, scanDestination, selectDestinations+` ORDER BY c.id`)
}

// DestinationHealthOf reads those of some consumers; what is no push consumer is left out.
func (s *Store) DestinationHealthOf(ctx context.Context, consumerKeys []uint32) ([]DestinationHealth, error) {
	if len(consumerKeys) == 0 {
		return nil, nil
	}
	args := make([]any, len(consumerKeys))
	for i, key := range consumerKeys {
		args[i] = key
	}
	return collect(ctx, s.db, scanDestination, selectDestinations+` AND c.id IN (`+placeholders("?", len(args))+`) ORDER BY c.id`, args...)
}

// ListDestinations lists at most limit of those that the filter selects, the oldest consumer first, from the consumer that comes
// after the given one (by its key; 0: from the start), and tells whether there are more.
func (s *Store) ListDestinations(ctx context.Context, f DestinationFilter, after uint32, limit int) (page []DestinationHealth, more bool, err error) {
	query, args := selectDestinations+` AND c.id > ?`, []any{after}
	if f.ChannelID != "" {
		query, args = query+` AND ch.channelId = ?`, append(args, f.ChannelID)
	}
	if f.State != "" {
		query, args = query+` AND COALESCE(h.state, 'unknown') = ?`, append(args, string(f.State))
	}
	page, err = collect(ctx, s.db, scanDestination, query+` ORDER BY c.id LIMIT ?`, append(args, limit+1)...)
	if len(page) > limit {
		return page[:limit], true, err
	}
	return page, false, err
}
