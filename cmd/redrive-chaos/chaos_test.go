//go:build unix

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestChaosShort builds the broker and plays a short run on a new seed: long enough for each kind of fault.
func TestChaosShort(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	binary := filepath.Join(t.TempDir(), "redrive")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "../redrive")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the broker: %v\n%s", err, text)
	}
	cfg := config{Redrive: binary, Duration: 10 * time.Second, Instances: 2, Rate: 40, Settle: 40 * time.Second}
	if err := run(ctx, cfg, t.Output()); err != nil {
		t.Fatal(err)
	}
}
