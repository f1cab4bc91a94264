package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
)

// ErrConfigDamaged is a machine configuration in a journal that is not the one whose
// sum the record has.
var ErrConfigDamaged = errors.New("the machine configuration in the journal is damaged")

func ConfigSum(config []byte) string {
	sum := sha256.Sum256(config)
	return hex.EncodeToString(sum[:])
}
