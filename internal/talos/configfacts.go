package talos

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"

	"github.com/recast-sh/recast/cluster"
)

// configFacts is what a Machine tells of its configuration.
type configFacts struct {
	encryption   []cluster.Encryption
	installImage string
}

// keptFacts is how many configurations a client knows again; more than the machines of a cluster.
const keptFacts = 1024

// factsRead are those of configurations that were read before, by their SHA-256:
// a roll reads each many times over, and to parse one costs more than to get it.
type factsRead struct {
	mu sync.Mutex
	of map[[sha256.Size]byte]configFacts
}

// facts reads a configuration; its errors quote nothing of it.
func (f *factsRead) facts(config []byte) (configFacts, error) {
	key := sha256.Sum256(config)
	f.mu.Lock()
	defer f.mu.Unlock()
	known, ok := f.of[key]
	if !ok {
		var err error
		if known.encryption, err = encryption(config); err != nil {
			return configFacts{}, fmt.Errorf("its configuration: %w", err)
		}
		known.installImage = installImage(config)
		if len(f.of) >= keptFacts || f.of == nil {
			f.of = map[[sha256.Size]byte]configFacts{}
		}
		f.of[key] = known
	}
	known.encryption = slices.Clone(known.encryption)
	return known, nil
}
