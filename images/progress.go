package images

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/words"
)

const mib = 1 << 20

// rateAfter is how long a transfer must take before its speed is reported.
const rateAfter = 5 * time.Second

// progress returns a function that turns a byte count into an occasional note: every
// tenth of the total, or every 64 MiB if the total is unknown. A count that
// decreases belongs to another attempt.
func progress(total int64, note func(string)) func(done int64) {
	every := int64(64 * mib)
	if total > 0 {
		every = max(total/10, 1)
	}
	next, last, begun := every, int64(0), time.Now()
	return func(done int64) {
		if done < last {
			next, begun = every, time.Now()
			note("beginning again")
		}
		last = done
		if done < next {
			return
		}
		next = (done/every + 1) * every
		text := words.Size(done)
		if total > 0 {
			text += " of " + words.Size(total)
		}
		if took := time.Since(begun); took >= rateAfter {
			text += ", " + words.Size(int64(float64(done)/took.Seconds())) + "/s"
		}
		note(text)
	}
}

// counted reports how many bytes were read so far.
type counted struct {
	io.Reader
	done int64
	tell func(done int64)
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.done += int64(n)
	c.tell(c.done)
	return n, err
}

// ReadProgress parses the note of a transfer: how much of how much is done, in
// bytes, and the rest of the note. ok is false for any other note.
func ReadProgress(note string) (done, total int64, rest string, ok bool) {
	amount, rest, _ := strings.Cut(note, ", ")
	so, of, found := strings.Cut(amount, " of ")
	if !found {
		return 0, 0, "", false
	}
	done, errDone := readSize(so)
	total, errTotal := readSize(of)
	if errDone != nil || errTotal != nil || total == 0 {
		return 0, 0, "", false
	}
	if rest == "" {
		return done, total, amount, true
	}
	return done, total, amount + ", " + rest, true
}

// readSize parses what size has written.
func readSize(text string) (int64, error) {
	number, unit, _ := strings.Cut(text, " ")
	n, err := strconv.ParseInt(number, 10, 64)
	switch {
	case err != nil:
		return 0, err
	case unit == "KiB":
		return n << 10, nil
	case unit == "MiB":
		return n << 20, nil
	}
	return 0, fmt.Errorf("%q is not a size", text)
}
