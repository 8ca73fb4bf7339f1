package workflowdb_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cschleiden/go-workflows/backend"
	"github.com/cschleiden/go-workflows/backend/history"
	backendtest "github.com/cschleiden/go-workflows/backend/test"
	"github.com/cschleiden/go-workflows/core"
	"github.com/cschleiden/go-workflows/diag"
	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/engine/durable/workflowdb"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

func TestMain(m *testing.M) {
	storagetest.Main(m,
		// The suites stop their workers with orchestrations under way, and the runtime keeps these in memory.
		goleak.IgnoreTopFunction("github.com/cschleiden/go-workflows/internal/sync.(*coState).yield"),
		goleak.IgnoreAnyFunction("github.com/jellydator/ttlcache/v3.(*Cache[...]).Start"),
	)
}

// pool is a database of t's own with the sessions of package storage.
func pool(t *testing.T, wrap func(driver.Connector) driver.Connector) *sql.DB {
	t.Helper()
	store, err := storage.Open(storage.Options{DSN: storagetest.DSN(t), WrapConnector: wrap, MaxOpenConns: 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store.DB()
}

var notEverywhere = regexp.MustCompile(`(?i)\bSKIP\s+LOCKED\b|\bRETURNING\b|\bFOR\s+UPDATE\s+OF\b|\bFOR\s+SHARE\b`)

// portable fails t where a statement has what one of the servers lacks or understands otherwise.
func portable(t *testing.T) func(driver.Connector) driver.Connector {
	return func(c driver.Connector) driver.Connector {
		return storagetest.Intercept(c, func(query string) (string, error) {
			if word := notEverywhere.FindString(query); word != "" {
				t.Errorf("a statement says %s: %s", word, query)
			}
			return query, nil
		})
	}
}

var quiet = slog.New(slog.DiscardHandler)

// The suites that the runtime has for backends.
func TestSuites(t *testing.T) {
	t.Parallel()
	for name, suite := range map[string]func(*testing.T, func(...backend.BackendOption) backendtest.TestBackend, func(backendtest.TestBackend)){
		"Backend":  backendtest.BackendTest,
		"EndToEnd": backendtest.EndToEndBackendTest,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pool(t, portable(t))
			setup := func(options ...backend.BackendOption) backendtest.TestBackend {
				for _, table := range []string{"workflow_instance", "workflow_event", "workflow_history", "workflow_activity"} {
					if _, err := db.ExecContext(t.Context(), "DELETE FROM "+table); err != nil {
						t.Fatal(err)
					}
				}
				b := suiteBackend{workflowdb.New(db, workflowdb.Options{Log: quiet}, options...), db}
				if name == "EndToEnd" {
					return patient{b, new(atomic.Bool)}
				}
				return b
			}
			suite(t, setup, func(b backendtest.TestBackend) {
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// suiteBackend has what the suites ask of a backend beside its interface: they look into the tables with it.
type suiteBackend struct {
	*workflowdb.Backend
	db *sql.DB
}

var _ diag.Backend = suiteBackend{}

// GetFutureEvents returns the timers that have not been taken in.
func (b suiteBackend) GetFutureEvents(ctx context.Context) ([]*history.Event, error) {
	rows, err := b.db.QueryContext(ctx, "SELECT event FROM workflow_event WHERE timer IS NOT NULL")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var events []*history.Event
	for rows.Next() {
		var data []byte
		if err := rows.Scan(&data); err != nil {
			return nil, err
		}
		event := new(history.Event)
		if err := json.Unmarshal(data, event); err != nil {
			return nil, err
		}
		events = append(events, event)
	}
	return events, rows.Err()
}

func (b suiteBackend) refs(ctx context.Context, where string, args ...any) ([]*diag.WorkflowInstanceRef, error) {
	rows, err := b.db.QueryContext(ctx, `SELECT instanceId, executionId, COALESCE(parent, ''), state, queue, createdAt, completedAt
		FROM workflow_instance WHERE `+where, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var refs []*diag.WorkflowInstanceRef
	for rows.Next() {
		ref := &diag.WorkflowInstanceRef{Instance: &core.WorkflowInstance{}}
		var parent, state string
		var completed sql.Null[time.Time]
		if err := rows.Scan(&ref.Instance.InstanceID, &ref.Instance.ExecutionID, &parent, &state, &ref.Queue, &ref.CreatedAt, &completed); err != nil {
			return nil, err
		}
		if completed.Valid {
			ref.CompletedAt = &completed.V
		}
		switch {
		case parent != "":
			return nil, fmt.Errorf("no suite asks for a child (%s)", ref.Instance.InstanceID)
		case state == "finished":
			ref.State = core.WorkflowInstanceStateFinished
		case state == "continued":
			ref.State = core.WorkflowInstanceStateContinuedAsNew
		}
		refs = append(refs, ref)
	}
	return refs, rows.Err()
}

// GetWorkflowInstance implements diag.Backend.
func (b suiteBackend) GetWorkflowInstance(ctx context.Context, instance *core.WorkflowInstance) (*diag.WorkflowInstanceRef, error) {
	refs, err := b.refs(ctx, "instanceId = ? AND executionId = ?", instance.InstanceID, instance.ExecutionID)
	if err != nil {
		return nil, err
	}
	if len(refs) == 0 {
		return nil, backend.ErrInstanceNotFound
	}
	return refs[0], nil
}

// GetWorkflowInstances implements diag.Backend, the newest first.
func (b suiteBackend) GetWorkflowInstances(ctx context.Context, afterInstanceID, afterExecutionID string, count int) ([]*diag.WorkflowInstanceRef, error) {
	return b.refs(ctx, `? = '' OR id < (SELECT id FROM workflow_instance WHERE instanceId = ? AND executionId = ?) ORDER BY id DESC LIMIT ?`,
		afterInstanceID, afterInstanceID, afterExecutionID, count)
}

// GetWorkflowTree implements diag.Backend; no suite asks for it.
func (b suiteBackend) GetWorkflowTree(context.Context, *core.WorkflowInstance) (*diag.WorkflowInstanceTree, error) {
	return nil, errors.New("no suite asks for a tree")
}
