// Package format reads JSON that another release of recast may have written: records in Proxmox,
// claims, journals, marks.
package format

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Decode reads exactly one value. A field that v lacks is an error: the field would be lost when the value is written
// again.
func Decode(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		// encoding/json has no type for this error.
		if field, unknown := strings.CutPrefix(err.Error(), "json: unknown field "); unknown {
			return fmt.Errorf("this recast does not know the field %s: a newer one wrote it, or it was edited", field)
		}
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value")
	}
	return nil
}

// ErrLacks says that a value lacks what every recast writes into it.
var ErrLacks = errors.New("someone has edited it")

// Version is embedded in every value that is written with the version of its format.
type Version struct {
	Version int `json:"version,omitempty"`
}

// NewerError says that only a newer recast can read a value.
type NewerError struct{ Version, Reads int }

func (e *NewerError) Error() string {
	return fmt.Sprintf("a newer recast wrote it: its format is version %d, and this recast reads version %d", e.Version, e.Reads)
}

// DecodeUpTo is Decode for a value whose type embeds Version. If the version is newer than reads, the error is a
// *NewerError. Then v has the fields that this recast knows and can read, and may be used only to decide whose value
// it is.
func DecodeUpTo(reads int, b []byte, v any) error {
	var its Version
	if err := json.Unmarshal(b, &its); err != nil {
		return err
	}
	if its.Version > reads {
		_ = json.Unmarshal(b, v) // fields that can't be read stay empty
		return &NewerError{its.Version, reads}
	}
	if its.Version < 1 {
		return fmt.Errorf("%w: it lacks its version", ErrLacks)
	}
	return Decode(b, v)
}
