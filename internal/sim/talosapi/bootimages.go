package talosapi

import (
	"crypto/sha256"
	"fmt"
	"sync"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/world"
)

// bootImages are the machines' unified kernel images by SHA-256, as their installers
// contained them. Disks and image caches hold only the digest: a real image has a hundred
// MiB, of which all machines share one copy. Images are never removed, because a disk
// somewhere may still refer to them.
type bootImages struct {
	mu   sync.Mutex
	held map[string]*world.Media
}

// keep stores an image and returns its digest.
func (s *bootImages) keep(uki []byte) (string, error) {
	sum := fmt.Sprintf("%x", sha256.Sum256(uki))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[sum] == nil {
		m, err := world.SpooledMedia(uki)
		if err != nil {
			return "", fmt.Errorf("keep boot image: %w", err)
		}
		s.held[sum] = m
	}
	return sum, nil
}

// read is the boot image with that digest.
func (s *bootImages) read(sum string) (artefact.Image, error) {
	s.mu.Lock()
	m := s.held[sum]
	s.mu.Unlock()
	if m == nil {
		return artefact.Image{}, fmt.Errorf("%w: nothing with SHA-256 %s is here", artefact.ErrNotBootable, sum)
	}
	return artefact.ReadUKI(m.Bytes())
}
