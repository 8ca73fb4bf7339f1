package storage

import (
	"database/sql/driver"
	"fmt"

	"github.com/rs/xid"
)

// ID is an xid: 12 bytes, sortable by the second it was made in, 20 characters on the wire.
type ID [12]byte

// NewID makes an ID that no other call, process or machine makes (xid's guarantees: machine, process, counter).
func NewID() ID { return ID(xid.New()) }

// ParseID reads the 20-character form.
func ParseID(s string) (ID, error) {
	id, err := xid.FromString(s)
	if err != nil {
		return ID{}, fmt.Errorf("%q is not an xid", s)
	}
	return ID(id), nil
}

// String is the 20-character wire form.
func (id ID) String() string { return xid.ID(id).String() }

// IsZero tells the ID that was never set.
func (id ID) IsZero() bool { return id == ID{} }

// Value stores the ID as BINARY(12).
func (id ID) Value() (driver.Value, error) { return id[:], nil }

// Scan reads a BINARY(12) column.
func (id *ID) Scan(src any) error {
	b, ok := src.([]byte)
	if !ok || len(b) != len(id) {
		return fmt.Errorf("storage: cannot read %T of a wrong size as an id", src)
	}
	copy(id[:], b)
	return nil
}
