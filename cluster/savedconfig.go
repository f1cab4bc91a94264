package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/internal/words"
)

// ErrConfigDamaged is a machine configuration in a journal that is not the one whose
// sum the record has.
var ErrConfigDamaged = errors.New("the machine configuration in the journal is damaged")

func ConfigSum(config []byte) string {
	sum := sha256.Sum256(config)
	return hex.EncodeToString(sum[:])
}

// CheckConfig compares a machine configuration from the journal with the sum in the
// record. A record of an older recast has none, and then any is accepted.
func (r Record) CheckConfig(config []byte) error {
	if r.Config == "" || ConfigSum(config) == r.Config {
		return nil
	}
	return fmt.Errorf("%w: its SHA-256 is %s, and the record of run %s says %s", ErrConfigDamaged, words.Short(ConfigSum(config)), r.Run, words.Short(r.Config))
}
