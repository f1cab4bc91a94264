package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const handsOver = "hands-over/"

// HandsOver is the fact in a run's journal that a storage handed a volume over from one VM to another
// on a host.
type HandsOver struct {
	Host    string `json:"host"`
	Storage string `json:"storage"`
}

// Key is the key of the fact in a journal.
func (h HandsOver) Key() string {
	sum := sha256.Sum256([]byte(h.Host + "/" + h.Storage))
	return handsOver + hex.EncodeToString(sum[:6])
}

// IsHandsOverKey reports whether key is that of a HandsOver.
func IsHandsOverKey(key string) bool { return strings.HasPrefix(key, handsOver) }
