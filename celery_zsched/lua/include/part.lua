-- part: a bounded part of a sorted set, by rank: its ids, and their scores.
local function part_of(key, from, limit)
  local found = call('ZRANGE', key, from, from + limit - 1, 'WITHSCORES')
  local ids, scores = {}, {}
  for at = 1, #found, 2 do
    ids[#ids + 1], scores[#scores + 1] = found[at], found[at + 1]
  end
  return ids, scores
end
