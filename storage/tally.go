package storage

import (
	"context"
	"database/sql"
	"slices"
)

// What the tally table counts; see the schema.
const (
	tallyJobs      = 1 // jobs of a consumer, whatever their status
	tallyDelivered = 2 // of those, DELIVERED
	tallyMessages  = 3 // dispatched messages of a channel
	tallyShelved   = 4 // of the jobs of a consumer, SHELVED
)

// TallyShards is the number of rows that each counter is spread over, so that concurrent writers do not wait for
// each other's commits. A writer that works alone keeps to one shard.
const TallyShards = 16

type tallyKey struct {
	kind  uint8
	refID uint32
}

// tallies gathers what a transaction adds to the counters.
type tallies map[tallyKey]int64

func (t tallies) add(kind uint8, refID uint32, n int64) { t[tallyKey{kind, refID}] += n }

// write adds everything in one statement, in the order of the primary key, so that two writers of one shard do not
// deadlock.
func (t tallies) write(ctx context.Context, tx *sql.Tx, shard uint8) error {
	keys := make([]tallyKey, 0, len(t))
	for k, n := range t {
		if n != 0 {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	slices.SortFunc(keys, func(a, b tallyKey) int {
		if a.kind != b.kind {
			return int(a.kind) - int(b.kind)
		}
		return int(int64(a.refID) - int64(b.refID))
	})
	args := make([]any, 0, 4*len(keys))
	for _, k := range keys {
		args = append(args, k.kind, k.refID, shard%TallyShards, t[k])
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO tally (kind, refId, shard, n) VALUES `+placeholders(`(?,?,?,?)`, len(keys))+
		` ON DUPLICATE KEY UPDATE n = n + VALUES(n)`, args...)
	return err
}
