package images

import (
	"encoding/json"
	"os"
	"time"
)

// sumsFile is where a cache keeps its checksums. It only saves time: what cannot be
// read or written is hashed again.
const sumsFile = ".sums.json"

// hashed is the state of a file when it was hashed.
type hashed struct {
	Size    int64     `json:"sizeBytes"`
	Changed time.Time `json:"changed"`
	SHA256  string    `json:"sha256"`
}

// known returns the checksum of a file that has not changed since it was hashed.
func (c *Cache) known(name string, info os.FileInfo) (sha256 string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.load()
	h, ok := c.sums[name]
	return h.SHA256, ok && h.Size == info.Size() && h.Changed.Equal(info.ModTime())
}

// load reads what earlier processes have recorded, once.
func (c *Cache) load() {
	if c.sums != nil {
		return
	}
	if b, err := os.ReadFile(c.path(sumsFile)); err != nil || json.Unmarshal(b, &c.sums) != nil || c.sums == nil {
		c.sums = map[string]hashed{}
	}
}

// remember records the checksum of a file for this process and later ones.
func (c *Cache) remember(name string, info os.FileInfo, sha256 string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.load()
	c.sums[name] = hashed{Size: info.Size(), Changed: info.ModTime(), SHA256: sha256}
	for other := range c.sums {
		if _, err := os.Stat(c.path(other)); err != nil {
			delete(c.sums, other)
		}
	}
	b, err := json.Marshal(c.sums)
	if err != nil {
		return
	}
	f, err := os.CreateTemp(c.dir, partial(sumsFile))
	if err != nil {
		return
	}
	_, err = f.Write(b)
	if errClose := f.Close(); err != nil || errClose != nil || os.Rename(f.Name(), c.path(sumsFile)) != nil {
		_ = os.Remove(f.Name()) // sweep removes it if this fails
	}
}
