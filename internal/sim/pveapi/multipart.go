package pveapi

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"syscall"

	"github.com/recast-sh/recast/internal/sim/world"
)

// uploadChunk is how much is read at a time; the parser runs after each chunk.
const uploadChunk = 128 << 10

// multipartBody is an upload being read, as file_upload_multipart of Proxmox' AnyEvent.pm
// does: with patterns that it matches against all unconsumed input. Therefore the fields
// have a fixed order, the file is last, and the first header of its part is its
// Content-Disposition.
type multipartBody struct {
	boundary string
	params   map[string]string
	spool    *world.Spool

	delimiter string // as a pattern
	buf       []byte
	phase     int // before the first boundary; in the fields; in the file; after it
}

const (
	inPreamble = iota
	inFields
	inFile
	afterFile
)

const newline = `\r?\n`

// readUpload reads a body of size bytes into params and spool.
func readUpload(body io.Reader, size int64, boundary string, params map[string]string, spool *world.Spool) error {
	b := &multipartBody{boundary: boundary, params: params, spool: spool, delimiter: `--` + regexp.QuoteMeta(boundary) + newline}
	chunk := make([]byte, uploadChunk)
	for read := int64(0); ; {
		n, err := body.Read(chunk)
		read += int64(n)
		b.buf = append(b.buf, chunk[:n]...)
		if n > 0 {
			if err := b.step(); err != nil {
				return err
			}
		}
		switch {
		case b.phase == afterFile:
			_, _ = io.Copy(io.Discard, body) // anything after the file is ignored
			return nil
		case read >= size:
			return plain(http.StatusInternalServerError, "upload failed at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1370.\n")
		case err != nil:
			return errClientGone
		}
	}
}

// errClientGone says that the client left before its request was complete.
var errClientGone = errors.New("the client has gone")

func (b *multipartBody) step() error {
	if b.phase == inPreamble {
		if at := b.pattern(b.delimiter).FindIndex(b.buf); at != nil {
			b.buf, b.phase = b.buf[at[0]:], inFields
		}
	}
	if b.phase == inFields {
		for _, name := range []string{"content", "checksum-algorithm", "checksum"} {
			if err := b.field(name); err != nil {
				return err
			}
		}
		if err := b.fileHeader(); err != nil {
			return err
		}
	}
	if b.phase == inFile {
		return b.fileContent()
	}
	return nil
}

func (b *multipartBody) pattern(text string) *regexp.Regexp { return regexp.MustCompile(`(?s)` + text) }

// field reads a field's value once the boundary after it has arrived. The pattern finds
// its name anywhere: a part before it ends up in the disposition.
func (b *multipartBody) field(name string) error {
	match := b.pattern(`^` + b.delimiter + `.*?Content-Disposition: (.*?); name="` + name + `"(.*?` + b.delimiter + `)`).FindSubmatchIndex(b.buf)
	if match == nil {
		return nil
	}
	if err := formData(b.buf[match[2]:match[3]]); err != nil {
		return err
	}
	b.buf = b.buf[match[4]:]
	b.skipHeaders()
	value := b.pattern(`^(.*?)` + b.delimiter).FindSubmatchIndex(b.buf)
	if value == nil {
		return nil
	}
	b.params[name] = strings.TrimSpace(string(b.buf[value[2]:value[3]]))
	b.buf = b.buf[value[3]:]
	return nil
}

// formData fails with a multi-line text if a part is in the wrong place; that does not fit
// into a status line, so it becomes 400 (response in AnyEvent.pm).
func formData(disposition []byte) error {
	if string(disposition) == "form-data" {
		return nil
	}
	return plain(http.StatusInternalServerError, "wrong Content-Disposition '%s' in multipart, expected 'form-data'\n", disposition)
}

func (b *multipartBody) skipHeaders() {
	if at := b.pattern(newline + newline).FindIndex(b.buf); at != nil {
		b.buf = b.buf[at[1]:]
	}
}

func (b *multipartBody) fileHeader() error {
	match := b.pattern(`^` + b.delimiter + `Content-Disposition: (.*?); name="(.*?)"; filename="([^"]+)"` + newline).FindSubmatch(b.buf)
	if match == nil {
		return nil
	}
	if err := formData(match[1]); err != nil {
		return err
	}
	if name := string(match[2]); name != "filename" {
		return plain(http.StatusInternalServerError, "wrong field name '%s' for file upload, expected 'filename' at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1325.\n", name)
	}
	b.params["filename"] = strings.TrimSpace(string(match[3]))
	b.buf, b.phase = b.buf[len(match[0]):], inFile
	// Without the end of the part's headers the content begins with them.
	b.skipHeaders()
	return nil
}

// fileContent spools everything that can't be part of the closing boundary.
func (b *multipartBody) fileContent() error {
	end := len(b.buf) - len(b.boundary) - len("\r\n----\r\n")
	if at := bytes.Index(b.buf, []byte("--"+b.boundary+"--")); at >= 0 {
		end, b.phase = at, afterFile
		for _, c := range []byte("\n\r") {
			if end > 0 && b.buf[end-1] == c {
				end--
			} else {
				break
			}
		}
	}
	if end <= 0 {
		return nil
	}
	_, err := b.spool.Write(b.buf[:end])
	b.buf = b.buf[:copy(b.buf, b.buf[end:])]
	if errors.Is(err, syscall.ENOSPC) {
		return plain(http.StatusInternalServerError, "write to temporary file failed - No space left on device\n")
	}
	return err
}
