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

local names = {}
for at = 2, #ARGV, 2 do
  names[#names + 1] = ARGV[at]
end
local known = #names > 0 and call('HMGET', history, unpack(names)) or {}
local texts, changed, fields = {}, {}, {}
for position, name in ipairs(names) do
  local record, text = ARGV[1 + position * 2], texts[name] or known[position] or ''
  local about = string.match(record, '^%S+ %S+ %S+ %S+ ')
  if not string.find('\n' .. text, '\n' .. about, 1, true) then
    text = first_lines(record .. '\n' .. text)
    changed[name] = true
  end
  texts[name] = text
end
for name in pairs(changed) do
  fields[#fields + 1] = name
  fields[#fields + 1] = texts[name]
end
if #fields > 0 then
  call('HSET', history, unpack(fields))
end
return 0
