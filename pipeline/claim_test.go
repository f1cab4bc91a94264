package pipeline

import (
	"context"
	"errors"
	"testing"

	"github.com/recast-sh/recast/images"
)

// fullShelf is a Store that counts what is stored.
type fullShelf struct {
	images.Store
	stored int
}

func (s *fullShelf) Upload(context.Context, images.Upload) error     { s.stored++; return nil }
func (s *fullShelf) Download(context.Context, images.Download) error { s.stored++; return nil }

// TestClaimedStore: files are stored only while the claim is ours.
func TestClaimedStore(t *testing.T) {
	t.Parallel()
	shelf, lost := &fullShelf{}, error(nil)
	s := claimedStore{store: shelf, write: func(ctx context.Context, send func(context.Context) error) error {
		if lost != nil {
			return lost
		}
		return send(ctx)
	}}
	for _, lost = range []error{nil, errors.New("lost")} {
		err := s.Upload(t.Context(), images.Upload{})
		errDownload := s.Download(t.Context(), images.Download{})
		for _, err := range []error{err, errDownload} {
			if !errors.Is(err, lost) || errors.Is(err, images.ErrNotSent) != (lost != nil) || shelf.stored != 2 {
				t.Errorf("stored %d times: %v", shelf.stored, err)
			}
		}
	}
}
