package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v4"
)

// Redacted returns a configuration for people to read: its documents in their order, without
// secrets, and without comments, which may quote one.
func Redacted(b []byte) ([]byte, error) {
	docs, err := Parse(b)
	if err != nil || len(docs.list) == 0 {
		return nil, err
	}
	s := newScreen(docs)
	var out bytes.Buffer
	decoder := yaml.NewDecoder(bytes.NewReader(b))
	dumper, err := yaml.NewDumper(&out, yaml.WithV3Defaults(), yaml.WithIndent(4), yaml.WithLineWidth(-1))
	if err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	for {
		var n yaml.Node
		err := decoder.Decode(&n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, notYAML(err)
		}
		if len(n.Content) != 1 || n.Content[0].ShortTag() == "!!null" {
			continue // only comments
		}
		s.redact(n.Content[0], nil)
		if err := dumper.Dump(n.Content[0]); err != nil {
			return nil, errors.New("it can't be written as YAML") // the writer's error may quote it
		}
	}
	if err := dumper.Close(); err != nil {
		return nil, errors.New("it can't be written as YAML")
	}
	return out.Bytes(), nil
}

// redact replaces the secrets below a node. An alias shows what its anchor shows: a value that is
// secret at either place is known as a secret.
func (s screen) redact(n *yaml.Node, path []string) {
	n.HeadComment, n.LineComment, n.FootComment = "", "", ""
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			s.redact(value, append(path[:len(path):len(path)], key.Value))
			s.redact(key, nil)
		}
	case yaml.SequenceNode:
		for _, item := range n.Content {
			s.redact(item, path)
		}
	case yaml.ScalarNode:
		if n.ShortTag() == "!!null" || n.Value == "" {
			return
		}
		if shown := s.scalar(path, n.Value); shown != quoted(n.Value) {
			n.SetString(shown)
			n.Tag, n.Style = "!!str", 0
		}
	}
}
