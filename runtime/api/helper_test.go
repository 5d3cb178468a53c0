package api

import "os"

func readAll(path string) (string, error) {
	data, err := os.ReadFile(path)
	return string(data), err
}
