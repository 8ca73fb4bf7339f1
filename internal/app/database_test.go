package app

import (
	"errors"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"
)

func TestHopeless(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]bool{"22001": true, "23000": true, "40001": false, "HY000": false, "08S01": false} {
		err := fmt.Errorf("seed: %w", &mysql.MySQLError{Number: 1, SQLState: [5]byte([]byte(state)), Message: "no"})
		if got := hopeless(err); got != want {
			t.Errorf("%s: %t", state, got)
		}
	}
	if hopeless(errors.New("connection refused")) {
		t.Error("a connection that was refused is waited for")
	}
}
