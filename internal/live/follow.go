package live

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
)

// Follower reads the log of a run that another process writes. An overlong log is renamed
// to Older, and a new one begins.
type Follower struct {
	Path, Older string
	Written     time.Time // time of the last write; zero: none

	file    os.FileInfo // the file being read; nil: none yet
	offset  int64
	partial []byte // an unfinished line
}

// Read adds the new lines of the log to the board. A missing log counts as empty.
func (f *Follower) Read(b *Board) error {
	file, err := os.Open(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close() // read only
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if f.file == nil || !os.SameFile(f.file, info) || info.Size() < f.offset {
		if err := f.older(b, info); err != nil {
			return err
		}
		f.offset, f.partial = 0, nil
	}
	f.file, f.Written = info, info.ModTime()
	return f.take(b, file, info.Size())
}

// older reads the unread rest of the older log.
func (f *Follower) older(b *Board, now os.FileInfo) error {
	file, err := os.Open(f.Older)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close() // read only
	info, err := file.Stat()
	if err != nil || os.SameFile(info, now) { // renamed since it was opened
		return err
	}
	if f.file == nil || !os.SameFile(f.file, info) {
		f.offset, f.partial = 0, nil
	}
	return f.take(b, file, info.Size())
}

// take reads a file from f.offset up to size.
func (f *Follower) take(b *Board, file io.ReaderAt, size int64) error {
	fresh, err := io.ReadAll(io.NewSectionReader(file, f.offset, size-f.offset))
	f.offset += int64(len(fresh))
	text := append(f.partial, fresh...)
	for {
		one, rest, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			f.partial = bytes.Clone(text)
			return err
		}
		b.logged(one)
		text = rest
	}
}

// logged adds one line of a log.
func (b *Board) logged(text []byte) {
	l, ok := story.Parse(text)
	if ok && l.Msg == "command" && l.Status == step.Started.String() {
		b.again(l.Time)
	} else if e, ok := l.Event(); ok {
		b.See(l.Time, e)
	}
}
