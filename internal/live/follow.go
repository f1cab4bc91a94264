package live

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
)

// Follower reads the log of a run that another process writes.
type Follower struct {
	Path   string
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
	if info.Size() < f.offset { // it grew too long, and was begun anew
		f.offset, f.begun = 0, nil
	}
	fresh, err := io.ReadAll(io.NewSectionReader(file, f.offset, info.Size()-f.offset))
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
