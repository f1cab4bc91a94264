package schedules

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

func number(name string, to *int) field {
	return field{name, func(*Case) string {
		if *to == 0 {
			return ""
		}
		return strconv.Itoa(*to)
	}, func(_ *Case, value string) (err error) {
		*to, err = strconv.Atoi(value)
		return err
	}}
}

func yes(name string, to *bool) field {
	return field{name, func(*Case) string {
		if !*to {
			return ""
		}
		return "yes"
	}, func(_ *Case, value string) error {
		if *to = value == "yes"; !*to {
			return errors.New("yes, or leave it out")
		}
		return nil
	}}
}

// word is a field with one of some values; any value if none are given.
func word(name string, to *string, oneOf ...string) field {
	return field{name, func(*Case) string { return *to }, func(_ *Case, value string) error {
		if *to = value; len(oneOf) > 0 && !slices.Contains(oneOf, value) || value == "" {
			return fmt.Errorf("one of %s", strings.Join(oneOf, ", "))
		}
		return nil
	}}
}

// list is a comma-separated field.
func list[T any](name string, to *[]T, parse func(string) (T, error)) field {
	return field{name, func(*Case) string {
		var words []string
		for _, v := range *to {
			words = append(words, fmt.Sprint(v))
		}
		return strings.Join(words, ",")
	}, func(_ *Case, value string) error {
		*to = nil
		for w := range strings.SplitSeq(value, ",") {
			v, err := parse(w)
			if err != nil {
				return err
			}
			*to = append(*to, v)
		}
		return nil
	}}
}

func bus(s string) (string, error) {
	if !slices.Contains([]string{"scsi", "virtio", "sata", "ide"}, s) {
		return "", fmt.Errorf("%q is no bus", s)
	}
	return s, nil
}

func change(s string) (string, error) {
	if s != changePatch && s != changeTalos && s != changeBack {
		return "", fmt.Errorf("%q is none of %s, %s and %s", s, changePatch, changeTalos, changeBack)
	}
	return s, nil
}

func strategy(s string) (cluster.Strategy, error) {
	all := []cluster.Strategy{cluster.Auto, cluster.Recreate, cluster.Reimage, cluster.InPlace}
	if !slices.Contains(all, cluster.Strategy(s)) {
		return "", fmt.Errorf("%q is no strategy: %v", s, all)
	}
	return cluster.Strategy(s), nil
}
