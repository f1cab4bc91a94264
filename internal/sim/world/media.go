package world

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"
)

// Media is the content of a volume: a disk's or an ISO's bytes. Only what was
// written is held; a blank disk has no bytes whatever its size.
type Media struct {
	mu    sync.Mutex
	bytes []byte
}

// NewMedia is media holding b, which it keeps.
func NewMedia(b []byte) *Media { return &Media{bytes: b} }

// Bytes returns what was written; the caller must not change it.
func (m *Media) Bytes() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// Write replaces the content; the media keeps b.
func (m *Media) Write(b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes = b
}

// SHA256 is the hex digest of the content.
func (m *Media) SHA256() string {
	sum := sha256.Sum256(m.Bytes())
	return hex.EncodeToString(sum[:])
}
