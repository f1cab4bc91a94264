package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Took is how long one node's roll took once.
type Took struct {
	Node     string   `json:"node"`
	Role     string   `json:"role"`
	Strategy Strategy `json:"strategy"`
	Talos    string   `json:"talos,omitempty"` // version that it had before
	// OutageSeconds is from the end of its drain to when it was back.
	OutageSeconds int `json:"outageSeconds"`
	// WholeSeconds is from its gate to its end.
	WholeSeconds int            `json:"wholeSeconds"`
	Expected     int            `json:"expectedOutageSeconds,omitempty"` // as its plan had it
	Steps        map[string]int `json:"steps,omitempty"`                 // seconds of those that took any, by path below the node
}

// tookKey is the suffix of the journal's key for a node's Took.
const tookKey = "/took"

// TookKey is the journal's key for a node's Took.
func TookKey(node string) string { return node + tookKey }

// IsTookKey says whether a key of the journal is for a Took.
func IsTookKey(key string) bool { return strings.HasSuffix(key, tookKey) }

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
