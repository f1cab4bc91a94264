package factoryapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

func (f *Factory) versions(w http.ResponseWriter, r *http.Request) error {
	list := f.buildable()
	if r.URL.Query().Get("broken") == "true" {
		list = append([]string{}, f.opts.Broken...)
	}
	return json.NewEncoder(w).Encode(list)
}

// buildable are the versions that are not marked as broken. For broken ones the factory has no lists:
// see siderolabs/image-factory, internal/artifacts, validateTalosVersion.
func (f *Factory) buildable() []string {
	list := []string{}
	for _, v := range f.opts.Versions {
		if !slices.Contains(f.opts.Broken, v) {
			list = append(list, v)
		}
	}
	return list
}

// versionTag parses a version in a path, with or without its "v".
func versionTag(text string) (string, error) {
	number := strings.TrimPrefix(text, "v")
	if ok, err := regexp.MatchString(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`, number); err != nil || !ok {
		return "", fmt.Errorf("error parsing version: %q", text)
	}
	return "v" + number, nil
}

func (f *Factory) requireVersion(tag string) error {
	if !slices.Contains(f.buildable(), tag) {
		return missingf("version %s is not available", strings.TrimPrefix(tag, "v"))
	}
	return nil
}

// latest is the newest stable version.
func (f *Factory) latest() (string, error) {
	for _, v := range slices.Backward(f.buildable()) {
		if !strings.Contains(v, "-") {
			return v, nil
		}
	}
	return "", errors.New("no stable version of Talos")
}
