package world

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"sync"
)

// Media is the content of a volume: a disk's or an ISO's bytes. It holds only what was
// written; a blank disk has no bytes whatever its size. Large uploads and downloads are in
// a file.
type Media struct {
	mu    sync.Mutex
	bytes []byte
	file  *os.File // unlinked; nil: the content is in bytes
	size  int64
	sum   string // SHA-256 of the content; "": not computed yet
	wrote uint64 // number of writes
}

// NewMedia is media holding b, which it keeps.
func NewMedia(b []byte) *Media { return &Media{bytes: b, size: int64(len(b))} }

// Bytes returns what was written; the caller must not change it. It is nil if that can't
// be read.
func (m *Media) Bytes() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file == nil {
		return m.bytes
	}
	b := make([]byte, m.size)
	if _, err := m.file.ReadAt(b, 0); err != nil {
		return nil
	}
	return b
}

// Write replaces the content; the media keeps b.
func (m *Media) Write(b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes, m.file, m.size, m.sum = b, nil, int64(len(b)), ""
	m.wrote++
}

// Writes counts how often the content was replaced.
func (m *Media) Writes() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.wrote
}

// Size is how many bytes were written.
func (m *Media) Size() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.size
}

// Open reads the present content from its beginning.
func (m *Media) Open() io.Reader { return m.content() }

// content reads the present content from any place.
func (m *Media) content() *io.SectionReader {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file == nil {
		return io.NewSectionReader(bytes.NewReader(m.bytes), 0, m.size)
	}
	return io.NewSectionReader(m.file, 0, m.size)
}

// SHA256 is the hex digest of the content.
func (m *Media) SHA256() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file != nil {
		h := sha256.New()
		_, _ = io.Copy(h, io.NewSectionReader(m.file, 0, m.size)) // a hash never fails; a partial read changes the digest
		return hex.EncodeToString(h.Sum(nil))
	}
	if m.sum == "" {
		sum := sha256.Sum256(m.bytes)
		m.sum = hex.EncodeToString(sum[:])
	}
	return m.sum
}

// replace copies the present content of other.
func (m *Media) replace(other *Media) {
	other.mu.Lock()
	b, file, size, sum := other.bytes, other.file, other.size, other.sum
	other.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes, m.file, m.size, m.sum = b, file, size, sum
	m.wrote++
}
