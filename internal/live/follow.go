package live

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"
)

// Follower reads the log of a run that another process writes. When the log has
// become too long it is renamed to Older, and begun anew.
type Follower struct {
	Path, Older string
	Written     time.Time // when something was written to it last; zero: nothing was

	file   os.FileInfo // that is read; nil: none yet
	offset int64
	begun  []byte // a line that has no end yet
}

// Read lets the board know what was logged since the last time. A log that is not
// there yet has nothing in it.
func (f *Follower) Read(b *Board) error {
	file, err := os.Open(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close() // it was only read
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if f.file == nil || !os.SameFile(f.file, info) || info.Size() < f.offset {
		if err := f.older(b, info); err != nil {
			return err
		}
		f.offset, f.begun = 0, nil
	}
	f.file, f.Written = info, info.ModTime()
	return f.take(b, file, info.Size())
}

// older reads what the log has been so far, but for what of it was read already.
func (f *Follower) older(b *Board, now os.FileInfo) error {
	file, err := os.Open(f.Older)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close() // it was only read
	info, err := file.Stat()
	if err != nil || os.SameFile(info, now) { // it was renamed only just
		return err
	}
	if f.file == nil || !os.SameFile(f.file, info) {
		f.offset, f.begun = 0, nil
	}
	return f.take(b, file, info.Size())
}

// take reads a file up to its size of a moment ago.
func (f *Follower) take(b *Board, file io.ReaderAt, size int64) error {
	fresh, err := io.ReadAll(io.NewSectionReader(file, f.offset, size-f.offset))
	f.offset += int64(len(fresh))
	text := append(f.begun, fresh...)
	for {
		one, rest, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			f.begun = bytes.Clone(text)
			return err
		}
		b.logged(one)
		text = rest
	}
}

// logged takes in one line of a log. Another command that goes on with the run
// begins with a board of its own: what was under way before it was cut off.
func (b *Board) logged(text []byte) {
	var l line
	if json.Unmarshal(text, &l) != nil {
		return
	}
	if l.Msg == "command" && l.Status == "started" {
		for _, n := range b.nodes {
			*n = node{name: n.name, phase: n.phase, strategy: n.strategy, outage: n.outage, takes: n.takes}
		}
		b.began, b.others, b.said, b.byPath = l.Time, nil, nil, map[string]*entry{}
		return
	}
	if at, e, ok := l.event(); ok {
		b.See(at, e)
	}
}
