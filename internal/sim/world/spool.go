package world

import (
	"crypto/md5"
	"fmt"
	"os"
	"syscall"
)

// spoolInMemory is the most bytes that a spool keeps in memory.
const spoolInMemory = 1 << 20

// Spool is a file on its way to a storage. It takes space on the host where it is written,
// which may have none left. The caller closes it.
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

// SpooledMedia is media holding b, in a file if it exceeds spoolInMemory.
func SpooledMedia(b []byte) (*Media, error) {
	m := NewMedia(b)
	if m.size <= spoolInMemory {
		return m, nil
	}
	return m, m.toFile()
}

// toFile moves the content to an unlinked file, which exists until the last reference is
// gone; mu must be held.
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

// Size is the number of bytes written.
func (s *Spool) Size() int64 { return s.media.Size() }

// Close frees the space. Copies elsewhere stay.
func (s *Spool) Close() { s.room(-s.media.Size()) }
