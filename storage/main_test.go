package storage_test

import (
	"flag"
	"testing"

	"github.com/redrive-mq/redrive/storage/storagetest"
)

func TestMain(m *testing.M) {
	// Histories on a real database: fewer than rapid's 100, unless the command line says how many.
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
	storagetest.Main(m)
}
