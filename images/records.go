package images

import (
	"context"
	"time"
)

// Record is a small file that is kept beside the images of a mirror, on a list of such files.
type Record struct {
	Name   string            // unique on its list
	Labels map[string]string // what readers want to know of it without its content
	Digest string            // changes with the content
	// SizeBytes is that of the content.
	SizeBytes int64
	Written   time.Time
}

// Records keeps lists of files in a registry. A list is a tag of a repository,
// "ghcr.io/acme/talos:recast-history-prod", and one request reads it whole.
type Records interface {
	// List reads a list, the newest first; none if there is no such list.
	List(ctx context.Context, list string) ([]Record, error)
	// Read reads the content of one.
	Read(ctx context.Context, list string, r Record) ([]byte, error)
	// Keep puts a file on a list, in place of what has its name there. Of more than most
	// it takes the oldest ones off.
	Keep(ctx context.Context, list string, r Record, content []byte, most int) error
	// ForAnyone says whether anyone on the internet could read the repository of a list: it answers
	// without a login, at a public address.
	ForAnyone(ctx context.Context, list string) (bool, error)
}
