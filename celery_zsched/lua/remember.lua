-- remember: what became of occurrences, the newest first; what is known already is not noted twice.
-- KEYS: history
-- ARGV: keep (how many records to keep for an entry), then pairs name, record (one line; its first four words are what
--       it is about: nominal, outcome, cause, task id)
-- RETURNS: 0
-- RULES: 7 (bounded for each entry)
-- @flags allow-oom
local history = KEYS[1]
local keep = tonumber(ARGV[1])
local call = redis.call

local function first_lines(text)
  local last = 0
  for _ = 1, keep do
    local at = string.find(text, '\n', last + 1, true)
    if not at then
      return text
    end
    last = at
  end
  return string.sub(text, 1, last)
end

for at = 2, #ARGV, 2 do
  local name, record = ARGV[at], ARGV[at + 1]
  local known = call('HGET', history, name) or ''
  local about = string.match(record, '^%S+ %S+ %S+ %S+ ')
  if not string.find('\n' .. known, '\n' .. about, 1, true) then
    call('HSET', history, name, first_lines(record .. '\n' .. known))
  end
end
return 0
