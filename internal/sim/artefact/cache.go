package artefact

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"
)

// A process boots the same few images and disks thousands of times, so built and parsed
// ones are cached. An evicted result is computed again.
var (
	madeUKIs   = makeCache{keep: keptImages}
	madeISOs   = makeCache{keep: keptImages}
	readImages = readCache{keep: keptImages}
	readISOs   = readCache{keep: keptImages}
	readDisks  memo[Disk]
)

// keptImages limits each cache: at some 10 KiB for a UKI and 100 KiB for an ISO, 30 MiB in all.
const keptImages = 256

// memo caches the latest results by the SHA-256 of their input.
type memo[V any] struct {
	mu    sync.Mutex
	found map[[sha256.Size]byte]V
	order [][sha256.Size]byte
}

func (m *memo[V]) get(key [sha256.Size]byte) (V, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.found[key]
	return v, ok
}

func (m *memo[V]) put(key [sha256.Size]byte, v V, keep int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.found[key]; ok {
		return
	}
	if m.found == nil {
		m.found = map[[sha256.Size]byte]V{}
	}
	if len(m.order) >= keep {
		delete(m.found, m.order[0])
		m.order = m.order[1:]
	}
	m.found[key] = v
	m.order = append(m.order, key)
}

type makeCache struct {
	memo memo[[]byte]
	keep int
}

func (c *makeCache) get(img Image, build func() ([]byte, error)) ([]byte, error) {
	input, err := json.Marshal(img)
	if err != nil {
		return nil, fmt.Errorf("encode image: %w", err)
	}
	key := sha256.Sum256(input)
	if b, ok := c.memo.get(key); ok {
		return b, nil
	}
	b, err := build()
	if err == nil {
		c.memo.put(key, b, c.keep)
	}
	return b, err
}

type readCache struct {
	memo memo[Image]
	keep int
}

func (c *readCache) get(b []byte, read func() (Image, error)) (Image, error) {
	key := sha256.Sum256(b)
	if img, ok := c.memo.get(key); ok {
		return img.clone(), nil
	}
	img, err := read()
	if err == nil {
		c.memo.put(key, img.clone(), c.keep)
	}
	return img, err
}
