package redact

import (
	"regexp"
	"slices"
	"strings"
)

// secretKey is how a field is called whose value is a secret, whatever it looks like.
var secretKey = regexp.MustCompile(`(?i)^(?:auth|.*-(?:key-data|data)|.*(?:token|secret|password|passwd|passphrase|credentials?)` +
	`|.*(?:api|access|auth|private|shared|signing|encryption|secret)[_-]?key|clusterid)$`)

// longKey is a field whose long values are secret: a short one is no key.
var longKey = regexp.MustCompile(`(?i)^(?:key|crt)$`)

const longValue = 40

// labels are what has fields called key that are names of labels and the like.
var labels = regexp.MustCompile(`(?i)^(?:(?:registerWith)?taints|tolerations|match(?:Label)?Expressions|matchFields|items)$`)

// Named says whether the field at path, keys from the top without indices of
// lists, is secret by its name, with that value. It knows at least what Talos'
// own RedactSecrets knows (machinery, config/container/container.go).
func Named(path []string, value string) bool {
	if len(path) == 0 {
		return false
	}
	last := path[len(path)-1]
	switch {
	case secretKey.MatchString(last):
		return true
	case longKey.MatchString(last) && len(value) >= longValue:
		return true
	case strings.EqualFold(last, "key"):
		return !slices.ContainsFunc(path, labels.MatchString)
	case len(path) == 2 && path[0] == "cluster" && last == "id": // whoever knows it can ask the discovery service for the members
		return true
	}
	return false
}

// foreign is what holds texts of other programs, which may have secrets anywhere:
// files, manifests, environments, headers of requests, the URL of SideroLink with its token.
var foreign = regexp.MustCompile(`(?i)^(?:contents?|manifest|data|stringData|headers|extraManifestHeaders|env|environment|variables|apiUrl)$`)

// proxies are the variables of an environment that are wanted in the open.
var proxies = regexp.MustCompile(`(?i)^(?:https?|no|all)_proxy$`)

// Foreign says whether the field at path holds a text of another program, so that
// nobody here can tell which part of it is secret.
func Foreign(path []string) bool {
	if !slices.ContainsFunc(path, foreign.MatchString) {
		return false
	}
	last := path[len(path)-1]
	return last != "name" && !proxies.MatchString(last)
}

// Variable splits "NAME=value" of a list that is an environment. The name of a
// variable is no secret.
func Variable(path []string, text string) (name, value string, ok bool) {
	if len(path) == 0 || !slices.Contains([]string{"env", "environment"}, path[len(path)-1]) {
		return "", "", false
	}
	return strings.Cut(text, "=")
}
