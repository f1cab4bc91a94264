package kubeapi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// operation is one operation of a JSON patch (RFC 6902); move and copy are not supported.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func jsonPatch(before, patch []byte) ([]byte, error) {
	var doc any
	if err := json.Unmarshal(before, &doc); err != nil {
		return nil, err
	}
	var operations []operation
	if err := json.Unmarshal(patch, &operations); err != nil {
		return nil, err
	}
	for _, o := range operations {
		if !strings.HasPrefix(o.Path, "/") {
			return nil, fmt.Errorf("%s %q: not a path below the object", o.Op, o.Path)
		}
		changed, err := o.apply(doc, pointer(o.Path))
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", o.Op, o.Path, err)
		}
		doc = changed
	}
	return json.Marshal(doc)
}

// pointer splits an RFC 6901 pointer.
func pointer(path string) []string {
	parts := strings.Split(path[1:], "/")
	for i, p := range parts {
		parts[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(p)
	}
	return parts
}

// apply returns doc with the operation applied at path.
func (o operation) apply(doc any, path []string) (any, error) {
	switch d := doc.(type) {
	case map[string]any:
		child, found := d[path[0]]
		if len(path) > 1 {
			changed, err := o.apply(child, path[1:])
			d[path[0]] = changed
			return d, err
		}
		keep, value, err := o.at(child, found)
		if keep {
			d[path[0]] = value
		} else {
			delete(d, path[0])
		}
		return d, err
	case []any:
		return o.applyToList(d, path)
	}
	return doc, fmt.Errorf("nothing at %q", path[0])
}

func (o operation) applyToList(d []any, path []string) (any, error) {
	if len(path) == 1 && path[0] == "-" && o.Op == "add" {
		return append(d, o.Value), nil
	}
	i, err := strconv.Atoi(path[0])
	if err != nil || i < 0 || i > len(d) || i == len(d) && (len(path) > 1 || o.Op != "add") {
		return d, fmt.Errorf("no element %q in a list of %d", path[0], len(d))
	}
	if len(path) > 1 {
		d[i], err = o.apply(d[i], path[1:])
		return d, err
	}
	if o.Op == "add" {
		return slices.Insert(d, i, o.Value), nil
	}
	keep, value, err := o.at(d[i], true)
	if !keep {
		return slices.Delete(d, i, i+1), err
	}
	d[i] = value
	return d, err
}

// at applies the operation to one value: keep says whether the value stays.
func (o operation) at(have any, found bool) (keep bool, value any, err error) {
	if !found && o.Op != "add" {
		return false, nil, fmt.Errorf("nothing there")
	}
	switch o.Op {
	case "add", "replace":
		return true, o.Value, nil
	case "remove":
		return false, nil, nil
	case "test":
		if !reflect.DeepEqual(have, o.Value) {
			return true, have, fmt.Errorf("the value differs")
		}
		return true, have, nil
	}
	return found, have, fmt.Errorf("operation %q is not served", o.Op)
}
