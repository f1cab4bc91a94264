package journal

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// A key is lower-case words joined by slashes: "node/wk1/vm-config". File names have "~",
// which no key contains, in place of the slash.
var (
	keyPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*$`)
	runPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)
)

const (
	separator = "~"
	maxName   = 200 // of at most 255 bytes in a file name
)

func checkRun(id string) error {
	if !runPattern.MatchString(id) || len(id) > maxName {
		return errors.New("a run ID is made of a-z, 0-9 and dashes")
	}
	return nil
}

func fileName(key, suffix string) (string, error) {
	if !keyPattern.MatchString(key) || len(key) > maxName {
		return "", fmt.Errorf("%q is not a valid key: words of a-z, 0-9, dot, dash and underscore, joined by slashes, %d bytes at most", key, maxName)
	}
	return strings.ReplaceAll(key, "/", separator) + suffix, nil
}

func keyOf(name string) (key string, ok bool) {
	stem, ok := strings.CutSuffix(name, factSuffix)
	if !ok {
		stem, ok = strings.CutSuffix(name, secretSuffix)
	}
	key = strings.ReplaceAll(stem, separator, "/")
	return key, ok && keyPattern.MatchString(key)
}
