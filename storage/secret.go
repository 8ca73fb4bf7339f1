package storage

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"errors"
	"fmt"
	"slices"
)

const (
	saltSize    = 16
	sealKeySize = 32 // AES-256
	keyIDSize   = 8
)

// tokenHash is 16 bytes of salt and then SHA-256(salt, token). Tokens are random by default and checked on every
// broadcast, so a slow password hash would buy little and cost each message milliseconds.
type tokenHash []byte

func hashToken(token string) tokenHash {
	salt := make([]byte, saltSize)
	_, _ = rand.Read(salt) // never fails (crypto/rand)
	return append(salt, saltedSum(salt, token)...)
}

func saltedSum(salt []byte, token string) []byte {
	h := sha256.New()
	h.Write(salt)
	h.Write([]byte(token))
	return h.Sum(nil)
}

func (h tokenHash) matches(token string) bool {
	if len(h) != saltSize+sha256.Size {
		return false
	}
	return subtle.ConstantTimeCompare(h[saltSize:], saltedSum(h[:saltSize], token)) == 1
}

// NewToken makes a random token, 26 characters with 128 bits.
func NewToken() string { return rand.Text() }

// sealer seals what must be read back: consumer tokens, which every push sends out, and signing secrets. AES-256-GCM; a sealed value is
// the key's id (8 bytes), the nonce (12) and the ciphertext.
type sealer struct {
	current keyed
	others  []keyed // still opened, no longer used to seal
}

type keyed struct {
	id   [keyIDSize]byte
	aead cipher.AEAD
}

func newKeyed(key []byte) (keyed, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return keyed{}, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return keyed{}, err
	}
	sum := sha256.Sum256(append([]byte("redrive seal key id "), key...))
	return keyed{id: [keyIDSize]byte(sum[:keyIDSize]), aead: aead}, nil
}

func (s *sealer) seal(plain string) []byte {
	k := s.current
	nonce := make([]byte, k.aead.NonceSize())
	_, _ = rand.Read(nonce) // never fails (crypto/rand)
	out := append(append([]byte{}, k.id[:]...), nonce...)
	return k.aead.Seal(out, nonce, []byte(plain), nil)
}

// isCurrent tells what seal made, and not one of the other keys.
func (s *sealer) isCurrent(sealed []byte) bool {
	return len(sealed) >= keyIDSize && [keyIDSize]byte(sealed[:keyIDSize]) == s.current.id
}

func (s *sealer) open(sealed []byte) (string, error) {
	for _, k := range append([]keyed{s.current}, s.others...) {
		n := keyIDSize + k.aead.NonceSize()
		if len(sealed) < n || [keyIDSize]byte(sealed[:keyIDSize]) != k.id {
			continue
		}
		plain, err := k.aead.Open(nil, sealed[keyIDSize:n], sealed[n:], nil)
		if err != nil {
			return "", errors.New("it was altered after it was sealed")
		}
		return string(plain), nil
	}
	return "", errors.New("it was sealed with a key that this instance does not have (REDRIVE_SEAL_KEY)")
}

// sealer returns the keys: those that were handed in, the first of which seals, then the one that the database keeps, so
// that setting REDRIVE_SEAL_KEY later, or another first key, does not lock out the tokens sealed before.
func (s *Store) sealer(ctx context.Context) (*sealer, error) {
	s.sealMu.Lock()
	defer s.sealMu.Unlock()
	if s.seals != nil {
		return s.seals, nil
	}
	stored, err := s.storedSealKey(ctx)
	if err != nil {
		return nil, err
	}
	var keys []keyed
	for _, key := range append(slices.Clone(s.sealKeys), stored) {
		k, err := newKeyed(key)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	s.seals = &sealer{current: keys[0], others: keys[1:]}
	return s.seals, nil
}

// DerivedKey is a key of 32 bytes for one purpose, the same on every instance: HMAC-SHA256 of the purpose under the key that
// the database keeps.
func (s *Store) DerivedKey(ctx context.Context, purpose string) ([]byte, error) {
	stored, err := s.storedSealKey(ctx)
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, stored)
	mac.Write([]byte(purpose))
	return mac.Sum(nil), nil
}

func (s *Store) storedSealKey(ctx context.Context) ([]byte, error) {
	const read = `SELECT secret FROM seal_key WHERE id = 1`
	var key []byte
	err := s.db.QueryRowContext(ctx, read).Scan(&key)
	if !errors.Is(err, sql.ErrNoRows) {
		return key, err
	}
	fresh := make([]byte, sealKeySize)
	_, _ = rand.Read(fresh) // never fails (crypto/rand)
	// Several instances may be first at once: one insert wins, all read the winner.
	if _, err := s.db.ExecContext(ctx,
		`INSERT INTO seal_key (id, secret, createdAt) VALUES (1, ?, NOW(6)) ON DUPLICATE KEY UPDATE id = id`, fresh); err != nil {
		return nil, fmt.Errorf("seal key: %w", err)
	}
	err = s.db.QueryRowContext(ctx, read).Scan(&key)
	return key, err
}
