package world

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
)

// Media is the content of a volume: the bytes of a disk or of an ISO. It holds only what was written; a blank disk
// has no bytes, whatever its size. Large uploads and downloads are in a file.
type Media struct {
	mu    sync.Mutex
	bytes []byte
	file  *os.File // unlinked; nil: the content is in bytes
	size  int64
	sum   string // SHA-256 of the content; "": not computed yet
	wrote uint64 // number of writes
}

// NewMedia returns media holding b. The media keeps b.
func NewMedia(b []byte) *Media { return &Media{bytes: b, size: int64(len(b))} }

// Bytes returns what was written, or nil if the content can't be read. The caller must not change the bytes.
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

// Size returns how many bytes were written.
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

// SHA256 returns the hex digest of the content.
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

// spoolInMemory is the most bytes that a spool keeps in memory.
const spoolInMemory = 1 << 20

// Spool is a file on its way to a storage. It takes space on the host where it is written; the host may have no space
// left. The caller closes the spool.
type Spool struct {
	// Name is the file's path on its host: "/var/tmp/pveupload-0123…".
	Name string

	media *Media
	room  func(more int64) bool // allocates space; false: none was left, and none is allocated
}

// NewSpool makes a file in /var/tmp of a host, on the host's root disk.
func (w *World) NewSpool(host string) *Spool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastPID++
	name := fmt.Sprintf("/var/tmp/pveupload-%x", md5.Sum(fmt.Append(nil, host, w.lastPID)))
	return &Spool{Name: name, media: NewMedia(nil), room: func(more int64) bool { return w.takeRoot(host, more) }}
}

// Write appends p, or nothing if the disk is full.
func (s *Spool) Write(p []byte) (int, error) {
	if !s.room(int64(len(p))) {
		return 0, syscall.ENOSPC
	}
	m := s.media
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file == nil && m.size+int64(len(p)) <= spoolInMemory {
		m.bytes, m.size, m.sum = append(m.bytes, p...), m.size+int64(len(p)), ""
		m.wrote++
		return len(p), nil
	}
	if m.file == nil {
		if err := m.toFile(); err != nil {
			return 0, err
		}
	}
	n, err := m.file.WriteAt(p, m.size)
	m.size += int64(n)
	if err != nil {
		return n, fmt.Errorf("write spool: %w", err)
	}
	return n, nil
}

// SpooledMedia returns media holding b, in a file if b exceeds spoolInMemory.
func SpooledMedia(b []byte) (*Media, error) {
	m := NewMedia(b)
	if m.size <= spoolInMemory {
		return m, nil
	}
	return m, m.toFile()
}

// toFile moves the content to an unlinked file, which exists until the last reference is gone; mu must be held.
func (m *Media) toFile() error {
	f, err := os.CreateTemp("", "recast-lab-spool-*")
	if err != nil {
		return fmt.Errorf("make spool: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return fmt.Errorf("make spool: %w", err)
	}
	if _, err := f.WriteAt(m.bytes, 0); err != nil {
		return fmt.Errorf("write spool: %w", err)
	}
	m.bytes, m.file = nil, f
	return nil
}

// Size returns the number of bytes written.
func (s *Spool) Size() int64 { return s.media.Size() }

// Close frees the space. Copies elsewhere stay.
func (s *Spool) Close() { s.room(-s.media.Size()) }
